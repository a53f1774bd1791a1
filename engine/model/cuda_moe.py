"""Mixture of experts in kernels: a few tokens, without the host, as CUDA graphs need it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear_layout import MAX_GEMV_ROWS
from swiftchat.cuda.ops.moe import (
    ACTIVATIONS,
    Routing,
    expert_down,
    expert_down_fits,
    expert_gate_up,
    expert_gate_up_fits,
    route,
)
from swiftchat.cuda.ops.mxfp4 import PackedExperts, mxfp4_down, mxfp4_fits, mxfp4_gate_up
from swiftchat.engine.linear.mxfp4_gpu import Mxfp4Weight
from swiftchat.engine.linear.plain_gpu import GpuPlainWeight, LinearKernels
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.moe import Experts
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


class ExpertMatrices(Protocol):
    """The matrices of a layer's experts, as the kernels read them."""

    def gate_up(self, gpu: Gpu, x: Tensor, ids: Tensor, out: Tensor, config: ModelConfig) -> None:
        """Write the activations of each token's experts, as `expert_gate_up` does."""

    def down(self, gpu: Gpu, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor) -> None:
        """Write the weighted sums of the experts' outputs, as `expert_down` does."""


@dataclass(frozen=True)
class PlainMatrices:
    """Float matrices: the addresses of each and of its bias."""

    inputs: Tensor
    input_biases: Tensor | None
    outputs: Tensor
    output_biases: Tensor | None

    def gate_up(self, gpu: Gpu, x: Tensor, ids: Tensor, out: Tensor, config: ModelConfig) -> None:
        expert_gate_up(
            gpu,
            x,
            self.inputs,
            ids,
            out,
            config.activation,
            biases=self.input_biases,
            gate_step=2 if config.interleaved_gate else 1,
            limit=config.gate_limit or 0.0,
        )

    def down(self, gpu: Gpu, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor) -> None:
        expert_down(gpu, x, self.outputs, ids, weights, out, self.output_biases)


@dataclass(frozen=True)
class Mxfp4Matrices:
    """MXFP4 matrices."""

    inputs: PackedExperts
    outputs: PackedExperts

    def gate_up(self, gpu: Gpu, x: Tensor, ids: Tensor, out: Tensor, config: ModelConfig) -> None:
        mxfp4_gate_up(
            gpu,
            x,
            self.inputs,
            ids,
            out,
            config.activation,
            gate_step=2 if config.interleaved_gate else 1,
            limit=config.gate_limit or 0.0,
        )

    def down(self, gpu: Gpu, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor) -> None:
        mxfp4_down(gpu, x, self.outputs, ids, weights, out)


@dataclass(frozen=True)
class LayerKernels:
    """What the kernels of a layer read; the router's biases are fp32."""

    matrices: ExpertMatrices
    router: GpuPlainWeight
    bias: Tensor | None
    correction: Tensor | None


class ExpertKernels:
    """The routed experts of a model's layers, for up to `MAX_GEMV_ROWS` tokens."""

    def __init__(self, kernels: LinearKernels, config: ModelConfig) -> None:
        self._kernels, self._config = kernels, config
        self._layers: dict[int, LayerKernels | None] = {}

    def support(self, layer: int, experts: Experts, num_tokens: int = 1) -> bool:
        """Return whether the kernels compute a layer's experts for this number of tokens."""
        return num_tokens <= MAX_GEMV_ROWS and self._layer(layer, experts) is not None

    def compute(self, layer: int, x: Tensor, experts: Experts) -> Tensor:
        """Return the weighted sum of the chosen experts' outputs: fp32 [n, hidden_size]."""
        own = self._layer(layer, experts)
        assert own is not None  # see `support`
        gpu, config, n = self._kernels.gpu, self._config, len(x)
        chosen = config.experts_per_token
        logits = own.router.matmul_fp32(x)
        ids = torch.empty(n, chosen, dtype=torch.int32, device=x.device)
        weights = torch.empty(n, chosen, device=x.device)
        inner = x.new_empty(n, chosen, config.expert_size)
        out = torch.empty(x.shape, device=x.device)
        routing = routing_of(config.router)
        route(gpu, logits, ids, weights, routing, bias=own.bias, correction=own.correction)
        own.matrices.gate_up(gpu, x, ids, inner, config)
        own.matrices.down(gpu, inner, ids, weights, out)
        return out

    def _layer(self, layer: int, experts: Experts) -> LayerKernels | None:
        """Return what the kernels of a layer read; None: they cannot compute it."""
        if layer not in self._layers:
            self._layers[layer] = self._prepare(experts)
        return self._layers[layer]

    def _prepare(self, experts: Experts) -> LayerKernels | None:
        config = self._config
        is_covered = (
            config.gated
            and config.gate_scale == 1.0
            and config.activation in ACTIVATIONS
            and routing_fits(config.router)
            and experts.scales is None
            and experts.project_in is None
        )
        matrices = self._matrices(experts) if is_covered else None
        if matrices is None:
            return None
        router = GpuPlainWeight(experts.router, self._kernels)
        correction = experts.correction
        return LayerKernels(
            matrices,
            router,
            None if experts.router_bias is None else experts.router_bias.float(),
            None if correction is None else correction.float().view(-1).contiguous(),
        )

    def _matrices(self, experts: Experts) -> ExpertMatrices | None:
        """Return the matrices of a layer; None for those that the kernels do not read.

        These are other quantized, or transposed ones, or of other widths.
        """
        each, chosen = experts.each, self._config.experts_per_token
        inputs, outputs = [e.gate_up for e in each], [e.down for e in each]
        input_biases = _addresses([expert.gate_up_bias for expert in each])
        output_biases = _addresses([expert.down_bias for expert in each])
        gpu, (hidden_size, expert_size) = self._kernels.gpu, outputs[0].shape
        packed = [_packed(weights, gpu) for weights in (inputs, outputs)]
        if packed[0] is not None and packed[1] is not None:
            if not (mxfp4_fits(gpu, hidden_size) and mxfp4_fits(gpu, expert_size, chosen)):
                return None
            return Mxfp4Matrices(
                PackedExperts(*packed[0], input_biases), PackedExperts(*packed[1], output_biases)
            )
        if not all(_is_plain(weight) for weight in (*inputs, *outputs)):
            return None
        itemsize = outputs[0].dtype.itemsize
        if not (
            expert_gate_up_fits(gpu, hidden_size, itemsize)
            and expert_down_fits(gpu, expert_size, chosen, itemsize)
        ):
            return None
        places = [_addresses([weight.tensors[0] for weight in some]) for some in (inputs, outputs)]
        assert places[0] is not None and places[1] is not None
        return PlainMatrices(places[0], input_biases, places[1], output_biases)


def routing_fits(router: RouterConfig) -> bool:
    """Return whether the kernel chooses and weighs experts as this router does."""
    return (
        router.scores in ("softmax", "sigmoid")
        and not router.on_input
        and router.best_of_group in (1, 2)
    )


def routing_of(router: RouterConfig) -> Routing:
    """Return the kernel's parameters of a router."""
    return Routing(
        sigmoid=router.scores == "sigmoid",
        by_logits=router.by_logits,
        num_groups=router.groups,
        top_groups=router.top_groups,
        best_of_group=router.best_of_group,
        normalized=router.normalized,
        eps=router.eps,
        scale=router.scale,
    )


def _is_plain(weight: LinearWeight) -> bool:
    if weight.is_quantized or not weight.kernel_matrices:
        return False
    (tensor,) = weight.tensors
    return tensor.is_contiguous() and tensor.data_ptr() % 16 == 0


def _packed(weights: Sequence[LinearWeight], gpu: Gpu) -> tuple[Tensor, Tensor] | None:
    """Return the addresses of MXFP4 blocks and scales; None if some matrix has another form."""
    found = [weight for weight in weights if isinstance(weight, Mxfp4Weight)]
    if len(found) < len(weights) or any(weight.dtype != torch.bfloat16 for weight in found):
        return None
    blocks = _addresses([weight.blocks for weight in found])
    scales = _addresses([weight.scales for weight in found])
    assert blocks is not None and scales is not None
    return blocks, scales


def _addresses(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Return the addresses of contiguous tensors on their device, int64; None if one is missing."""
    present = [tensor for tensor in tensors if tensor is not None]
    if len(present) < len(tensors):
        return None
    assert all(tensor.is_contiguous() for tensor in present)
    return torch.tensor([tensor.data_ptr() for tensor in present]).to(present[0].device)
