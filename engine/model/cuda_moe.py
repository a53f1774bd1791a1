"""Mixture of experts in kernels, without the host, as CUDA graphs need it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from swiftchat.cuda.ops.expert_matrices import ExpertMatrices
from swiftchat.cuda.ops.grouped_experts import (
    expert_order,
    expert_sum,
    grouped_down,
    grouped_fits,
    grouped_gate_up,
)
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
from swiftchat.cuda.packed_layout import TILE_COLUMNS
from swiftchat.engine.linear.mxfp4_gpu import Mxfp4Weight
from swiftchat.engine.linear.plain_gpu import GpuPlainWeight, LinearKernels
from swiftchat.engine.linear.quantized_gpu import GpuQuantizedWeight
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.moe import Experts
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


class Gates(TypedDict):
    """How the kernels find gates, and limit them."""

    gate_step: int
    limit: float


@dataclass(frozen=True)
class LayerKernels:
    """What the kernels of a layer read; the router's biases are fp32.

    `has_gemv`: kernels of their own compute a few tokens.
    """

    inputs: ExpertMatrices
    outputs: ExpertMatrices
    has_gemv: bool
    router: GpuPlainWeight
    bias: Tensor | None
    correction: Tensor | None


class ExpertKernels:
    """The routed experts of a model's layers.

    Up to `MAX_GEMV_ROWS` tokens each read the matrices of their experts; of more tokens the experts
    compute all their rows together.
    """

    def __init__(self, kernels: LinearKernels, config: ModelConfig) -> None:
        self._kernels, self._config = kernels, config
        self._layers: dict[int, LayerKernels | None] = {}
        self._gates: Gates = {
            "gate_step": 2 if config.interleaved_gate else 1,
            "limit": config.gate_limit or 0.0,
        }

    def support(self, layer: int, experts: Experts) -> bool:
        """Return whether the kernels compute a layer's experts."""
        return self._layer(layer, experts) is not None

    def compute(self, layer: int, x: Tensor, experts: Experts) -> Tensor:
        """Return the weighted sum of the chosen experts' outputs: fp32 [n, hidden_size]."""
        own = self._layer(layer, experts)
        assert own is not None  # see `support`
        n, chosen = len(x), self._config.experts_per_token
        logits = own.router.matmul_fp32(x)
        ids = torch.empty(n, chosen, dtype=torch.int32, device=x.device)
        weights = torch.empty(n, chosen, device=x.device)
        routing = routing_of(self._config.router)
        gpu = self._kernels.gpu
        route(gpu, logits, ids, weights, routing, bias=own.bias, correction=own.correction)
        is_gemv = own.has_gemv and n <= MAX_GEMV_ROWS
        return (self._each if is_gemv else self._grouped)(own, x, ids, weights)

    def _each(self, own: LayerKernels, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Compute the experts of each token by themselves."""
        gpu, activation = self._kernels.gpu, self._config.activation
        inner = x.new_empty(*ids.shape, self._config.expert_size)
        out = torch.empty(x.shape, device=x.device)
        inputs, outputs = own.inputs, own.outputs
        if inputs.scales is not None and outputs.scales is not None:
            packed = PackedExperts(inputs.values, inputs.scales, inputs.biases)
            mxfp4_gate_up(gpu, x, packed, ids, inner, activation, **self._gates)
            packed = PackedExperts(outputs.values, outputs.scales, outputs.biases)
            mxfp4_down(gpu, inner, packed, ids, weights, out)
            return out
        biases = inputs.biases
        expert_gate_up(gpu, x, inputs.values, ids, inner, activation, biases=biases, **self._gates)
        expert_down(gpu, inner, outputs.values, ids, weights, out, outputs.biases)
        return out

    def _grouped(self, own: LayerKernels, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Compute all rows of each expert together."""
        gpu, config = self._kernels.gpu, self._config
        rows = expert_order(gpu, ids, config.num_experts)
        inner = x.new_empty(ids.numel(), config.expert_size)
        grouped_gate_up(gpu, x, own.inputs, rows, inner, config.activation, **self._gates)
        parts = x.new_empty(*ids.shape, x.shape[1])
        grouped_down(gpu, inner, own.outputs, rows, parts.view(ids.numel(), -1))
        out = torch.empty(x.shape, device=x.device)
        expert_sum(gpu, parts, weights, out)
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
        if not is_covered:
            return None
        each = experts.each
        inputs = _matrices([e.gate_up for e in each], [e.gate_up_bias for e in each])
        outputs = _matrices([e.down for e in each], [e.down_bias for e in each])
        dtype = each[0].down.dtype
        if inputs is None or outputs is None:
            return None
        is_packed = inputs.scheme in TILE_COLUMNS
        if (
            not (grouped_fits(inputs, dtype) and grouped_fits(outputs, dtype))
            or (is_packed and (config.interleaved_gate or config.expert_size % 8))
            or config.hidden_size % 8
        ):
            return None
        correction = experts.correction
        return LayerKernels(
            inputs,
            outputs,
            self._has_gemv(inputs, outputs, dtype),
            GpuPlainWeight(experts.router, self._kernels),
            None if experts.router_bias is None else experts.router_bias.float(),
            None if correction is None else correction.float().view(-1).contiguous(),
        )

    def _has_gemv(
        self, inputs: ExpertMatrices, outputs: ExpertMatrices, dtype: torch.dtype
    ) -> bool:
        """Return whether kernels compute the experts of a few tokens by themselves."""
        gpu, chosen, itemsize = self._kernels.gpu, self._config.experts_per_token, dtype.itemsize
        hidden_size, expert_size = inputs.columns, outputs.columns
        match inputs.scheme, outputs.scheme:
            case "MXFP4", "MXFP4":
                return mxfp4_fits(gpu, hidden_size) and mxfp4_fits(gpu, expert_size, chosen)
            case "PLAIN", "PLAIN":
                return expert_gate_up_fits(gpu, hidden_size, itemsize) and expert_down_fits(
                    gpu, expert_size, chosen, itemsize
                )
        return False


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


def _matrices(
    weights: Sequence[LinearWeight], biases: Sequence[Tensor | None]
) -> ExpertMatrices | None:
    """Return the same matrix of all experts for the kernels; None if they do not read it.

    These are transposed ones, and those whose schemes differ.
    """
    first, scheme, group_size = weights[0], "PLAIN", 0
    pairs: list[tuple[Tensor, Tensor | None]] = []
    for weight in weights:
        match weight:
            case Mxfp4Weight():
                scheme = "MXFP4"
                pairs.append((weight.blocks, weight.scales))
            case GpuQuantizedWeight(matrix):
                scheme, group_size = matrix.scheme, matrix.group_size
                pairs.append((matrix.tiles, matrix.row_scale))
            case GpuPlainWeight() if weight.kernel_matrices:
                pairs.append((weight.tensors[0], None))
            case _:
                return None
    is_alike = all(_kind(weight) == _kind(first) for weight in weights)
    is_aligned = all(values.is_contiguous() and values.data_ptr() % 16 == 0 for values, _ in pairs)
    values = _addresses([pair[0] for pair in pairs]) if is_alike and is_aligned else None
    if values is None:
        return None
    scales = _addresses([pair[1] for pair in pairs])
    return ExpertMatrices(scheme, *first.shape, values, scales, _addresses(biases), group_size)


def _kind(weight: LinearWeight) -> tuple[object, ...]:
    """Return what must be the same for all experts."""
    return type(weight), weight.description, weight.shape, weight.dtype


def _addresses(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Return the addresses of contiguous tensors on their device, int64; None if one is missing."""
    present = [tensor for tensor in tensors if tensor is not None]
    if len(present) < len(tensors):
        return None
    assert all(tensor.is_contiguous() for tensor in present)
    return torch.tensor([tensor.data_ptr() for tensor in present]).to(present[0].device)
