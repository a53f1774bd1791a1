"""Mixture of experts in kernels: a few tokens, without the host, as CUDA graphs need it."""

import torch
from torch import Tensor

from swiftchat.cuda.ops.linear_layout import MAX_GEMV_ROWS
from swiftchat.cuda.ops.moe import (
    expert_down,
    expert_down_fits,
    expert_gate_up,
    expert_gate_up_fits,
    route,
)
from swiftchat.engine.linear.plain_gpu import GpuPlainWeight, LinearKernels
from swiftchat.engine.model.moe import Experts
from swiftchat.weights.architectures.config import ModelConfig


class ExpertKernels:
    """The routed experts of a model's layers, for up to `MAX_GEMV_ROWS` tokens."""

    def __init__(self, kernels: LinearKernels, config: ModelConfig) -> None:
        self._kernels, self._config = kernels, config
        self._addresses: dict[int, tuple[Tensor, Tensor] | None] = {}

    def support(self, layer: int, experts: Experts, num_tokens: int = 1) -> bool:
        """Return whether the kernels compute a layer's experts for this number of tokens."""
        is_plain = self._config.router.is_plain and num_tokens <= MAX_GEMV_ROWS
        return is_plain and self._layer_addresses(layer, experts) is not None

    def compute(self, layer: int, x: Tensor, experts: Experts) -> Tensor:
        """Return the weighted sum of the chosen experts' outputs: fp32 [n, hidden_size]."""
        addresses = self._layer_addresses(layer, experts)
        assert addresses is not None  # see `support`
        gate_up, down = addresses
        gpu, config, n = self._kernels.gpu, self._config, len(x)
        chosen = config.experts_per_token
        scores = GpuPlainWeight(experts.router, self._kernels).matmul_fp32(x)
        ids = torch.empty(n, chosen, dtype=torch.int32, device=x.device)
        weights = torch.empty(n, chosen, device=x.device)
        inner = x.new_empty(n, chosen, config.expert_size)
        out = torch.empty(x.shape, device=x.device)
        route(gpu, scores, ids, weights, renormalize=config.router.normalized)
        expert_gate_up(gpu, x, gate_up, ids, inner, config.activation)
        expert_down(gpu, inner, down, ids, weights, out)
        return out

    def _layer_addresses(self, layer: int, experts: Experts) -> tuple[Tensor, Tensor] | None:
        """Return the addresses of a layer's `gate_up` and `down`: int64 [num_experts] each.

        None for matrices that the kernels do not read: quantized, transposed, or of other widths.
        """
        if layer not in self._addresses:
            self._addresses[layer] = self._find_addresses(experts)
        return self._addresses[layer]

    def _find_addresses(self, experts: Experts) -> tuple[Tensor, Tensor] | None:
        pairs = [(expert.gate_up, expert.down) for expert in experts.each]
        if any(w.is_quantized or not w.kernel_matrices for pair in pairs for w in pair):
            return None
        gate_up, down = ([w.tensors[0] for w in weights] for weights in zip(*pairs, strict=True))
        if not all(tensor.is_contiguous() for tensor in (*gate_up, *down)):
            return None
        gpu, itemsize = self._kernels.gpu, down[0].itemsize
        hidden_size, expert_size = down[0].shape
        chosen = self._config.experts_per_token
        if not (
            expert_gate_up_fits(gpu, hidden_size, itemsize)
            and expert_down_fits(gpu, expert_size, chosen, itemsize)
        ):
            return None
        addresses = torch.tensor([[m.data_ptr() for m in each] for each in (gate_up, down)])
        both = addresses.to(gpu.device)
        return both[0], both[1].clone()
