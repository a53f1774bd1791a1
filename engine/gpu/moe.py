"""Mixture of experts in kernels, without the host, as CUDA graphs need it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.cuda.ops.linear.layout import MAX_GEMV_ROWS
from swiftchat.cuda.ops.linear.linear import Norm
from swiftchat.cuda.ops.moe.expert_matrices import ACTIVATIONS, ExpertMatrices
from swiftchat.cuda.ops.moe.experts import expert_down, expert_gate_up, experts_fit
from swiftchat.cuda.ops.moe.grouped_experts import (
    expert_order,
    expert_sum,
    grouped_down,
    grouped_fits,
    grouped_gate_up,
)
from swiftchat.engine.gpu.expert_matrices import expert_matrices, with_shared
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.gpu.router import LayerRouter, RouterKernels, routing_fits
from swiftchat.engine.model.moe import Experts
from swiftchat.weights.architectures.parts.mlp import Moe
from swiftchat.weights.architectures.parts.model import ModelConfig


@dataclass(frozen=True)
class LayerKernels:
    """What the kernels of a layer read.

    `has_gemv`: kernels of their own compute a few tokens. `all_inputs` and `all_outputs` are the
    matrices for a few tokens: parts of the shared expert are the last ones, if the kernels compute
    it with the others. The router then computes its gate.
    """

    inputs: ExpertMatrices
    outputs: ExpertMatrices
    all_inputs: ExpertMatrices
    all_outputs: ExpertMatrices
    has_gemv: bool
    router: LayerRouter


class ExpertKernels:
    """The routed experts of a model's layers.

    Up to `MAX_GEMV_ROWS` tokens each read the matrices of their experts; of more tokens the experts
    compute all their rows together.
    """

    def __init__(self, kernels: LinearKernels, config: ModelConfig) -> None:
        self._kernels, self._hidden_size, self._moe = kernels, config.hidden_size, config.moe
        self._layers: dict[int, LayerKernels | None] = {}
        self._router = RouterKernels(kernels, config)
        self._limit = config.activation.limit or 0.0  # of gates and of up

    @property
    def _config(self) -> Moe:
        assert self._moe is not None  # a model without experts asks for none
        return self._moe

    def support(self, layer: int, experts: Experts) -> bool:
        """Return whether the kernels compute a layer's experts."""
        return self._layer(layer, experts) is not None

    def compute(
        self, layer: int, x: Tensor, experts: Experts, router_input: Tensor | None = None
    ) -> Tensor:
        """Return the weighted sum of the chosen experts' outputs: fp32 [n, hidden_size].

        The router reads `router_input`, if given, instead of x.
        """
        own = self._layer(layer, experts)
        assert own is not None  # see `support`
        n = len(x)
        ids, weights = self._choices(n)
        self._router.choose(own.router, x if router_input is None else router_input, ids, weights)
        if own.has_gemv and n <= MAX_GEMV_ROWS:
            out = torch.empty(x.shape, device=x.device)
            self._each(own, x, ids, weights, out)
            return out
        return self._grouped(own, x, ids, weights)

    def adds(self, layer: int, experts: Experts, n: int) -> bool:
        """Return whether `add` computes n rows."""
        own = self._layer(layer, experts)
        return own is not None and own.has_gemv and n <= MAX_GEMV_ROWS

    def adds_shared(self, layer: int, experts: Experts) -> bool:
        """Return whether `add` also computes the shared expert."""
        own = self._layer(layer, experts)
        return own is not None and own.all_inputs.num_shared > 0

    def add(
        self,
        layer: int,
        x: Tensor,
        norm: Norm,
        experts: Experts,
        expert_norm: Tensor | None = None,
        out: Tensor | None = None,
        beside: Callable[[], None] | None = None,
    ) -> None:
        """Add the weighted sum of the experts' outputs to the stream x fp32 in place, or to `out`.

        Router and experts read the norm of x, the experts one with other weights if `expert_norm`.
        `beside` is called once: it launches what adds to the same sum, and may run meanwhile.
        """
        own = self._layer(layer, experts)
        assert own is not None  # see `adds`
        num_shared = own.all_inputs.num_shared
        ids, weights = self._choices(len(x), num_shared)
        normed = own.router.rows.new_empty(x.shape)
        self._router.choose_of_norm(
            own.router, x, norm, normed, ids, weights, expert_norm, num_shared
        )
        self._each(own, normed, ids, weights, x if out is None else out, accumulate=True)
        if beside is not None:
            beside()

    def _choices(self, n: int, num_shared: int = 0) -> tuple[Tensor, Tensor]:
        """Return memory for the experts of n tokens and their weights."""
        shape, device = (n, self._config.experts_per_token + num_shared), self._kernels.gpu.device
        ids = torch.empty(shape, dtype=torch.int32, device=device)
        return ids, torch.empty(shape, device=device)

    def _each(
        self,
        own: LayerKernels,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        out: Tensor,
        *,
        accumulate: bool = False,
    ) -> None:
        """Write the weighted sum of each token's experts for x to `out`, or add it."""
        gpu, config = self._kernels.gpu, self._config
        inner = x.new_empty(*ids.shape, config.expert_size)
        of_input, of_output = self._places(weights)
        expert_gate_up(
            gpu,
            x,
            own.all_inputs,
            ids,
            inner,
            config.activation.kind,
            input_weights=of_input,
            limit=self._limit,
        )
        expert_down(gpu, inner, own.all_outputs, ids, of_output, out, accumulate=accumulate)

    def _places(self, weights: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return what multiplies the inputs of experts, and what their outputs."""
        return (weights, None) if self._config.router.on_input else (None, weights)

    def _grouped(self, own: LayerKernels, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Compute all rows of each expert together."""
        gpu, config = self._kernels.gpu, self._config
        rows = expert_order(gpu, ids, config.num_experts)
        inner = x.new_empty(ids.numel(), config.expert_size)
        of_input, of_output = self._places(weights)
        grouped_gate_up(
            gpu,
            x,
            own.inputs,
            rows,
            inner,
            config.activation.kind,
            input_weights=of_input,
            limit=self._limit,
        )
        parts = x.new_empty(*ids.shape, x.shape[1])
        grouped_down(gpu, inner, own.outputs, rows, parts.view(ids.numel(), -1))
        out = torch.empty(x.shape, device=x.device)
        expert_sum(gpu, parts, of_output, out)
        return out

    def _layer(self, layer: int, experts: Experts) -> LayerKernels | None:
        """Return what the kernels of a layer read; None: they cannot compute it."""
        if layer not in self._layers:
            self._layers[layer] = self._prepare(experts)
        return self._layers[layer]

    def _prepare(self, experts: Experts) -> LayerKernels | None:
        config = self._config
        is_covered = (
            config.activation.gated
            and config.activation.scale == 1.0
            and config.activation.kind in ACTIVATIONS
            and routing_fits(config.router)
            and not config.identity_experts
            and experts.project_in is None
        )
        if not is_covered:
            return None
        each = experts.each
        inputs = expert_matrices([e.gate_up for e in each], [e.gate_up_bias for e in each])
        outputs = expert_matrices([e.down for e in each], [e.down_bias for e in each])
        dtype = each[0].down.dtype
        if inputs is None or outputs is None:
            return None
        if (
            not (grouped_fits(inputs, dtype) and grouped_fits(outputs, dtype))
            or (inputs.scheme != "PLAIN" and config.expert_size % 8)
            or self._hidden_size % 8
        ):
            return None
        has_gemv, gate = self._has_gemv(inputs, outputs, dtype), None
        every = inputs, outputs
        shared, shared_router = experts.shared, experts.shared_router
        # Its own router would multiply the input of the shared expert, too.
        is_plain = shared_router is None or not config.router.on_input
        if shared is not None and has_gemv and is_plain:
            appended = with_shared(inputs, outputs, each[0], shared)
            if appended is not None and self._has_gemv(*appended, dtype):
                every, gate = appended, shared_router
        router = LayerRouter.of(experts, self._kernels, gate)
        return LayerKernels(inputs, outputs, *every, has_gemv, router)

    def _has_gemv(
        self, inputs: ExpertMatrices, outputs: ExpertMatrices, dtype: torch.dtype
    ) -> bool:
        """Return whether kernels compute the experts of a few tokens by themselves."""
        gpu, chosen = self._kernels.gpu, self._config.experts_per_token + inputs.num_shared
        return experts_fit(gpu, inputs, dtype) and experts_fit(gpu, outputs, dtype, chosen)
