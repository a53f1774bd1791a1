"""A decoder's layers on the CPU, traced by torch: no Python between their operators."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from swiftchat.engine.linear.torch_private import run_traced, trace
from swiftchat.engine.model.decoder import Decoder, LayerWeights
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.torch_ops import TorchPlan

# Tracing takes as long as it saves in about forty steps; short answers must not wait for it.
_UNTRACED_STEPS = 8


class TracedLayers:
    """`Decoder.forward_layers`, traced for decode steps of one token.

    In a step of a small model most of the time between two matmuls is Python's. After a few steps
    `torch.jit.trace` lists the operators that the layers call; from then on torch calls the same
    operators, with bitwise equal results. Any batch other than one token of one sequence whose
    context is a view of the cache is computed by the decoder. The decoder's weights must not
    change; torch keeps them in the traced function until the process ends.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._num_steps = 0
        self._traced: Callable[..., Tensor] | None = None

    @property
    def is_traced(self) -> bool:
        return self._traced is not None

    @staticmethod
    def supports(decoder: Decoder, device: torch.device) -> bool:
        """Return whether the layers can be traced and tracing saves time.

        Experts cannot: their operators depend on data. Torch does not support tracing from Python
        3.14 on.
        """
        dtype = decoder.weights.dtype
        return (
            device.type == "cpu"
            and sys.version_info < (3, 14)
            and decoder.ranks.size == decoder.stages.size == 1
            and all(_is_traceable(layer, dtype) for layer in decoder.weights.layers)
        )

    def __call__(self, plan: TorchPlan, x: Tensor, cache: KVCache) -> Tensor:
        inputs = _inputs(plan) if x.shape[0] == 1 else None
        self._num_steps += inputs is not None
        if inputs is None or self._num_steps <= _UNTRACED_STEPS:
            return self._decoder.forward_layers(plan, x, cache)
        if self._traced is None:
            self._traced = self._trace(plan, x.clone(), inputs, cache)
        return run_traced(self._traced, x, *inputs)

    def _trace(
        self, plan: TorchPlan, x: Tensor, inputs: Sequence[Tensor], cache: KVCache
    ) -> Callable[..., Tensor]:
        """Trace the layers as a function of the stream, which it overwrites, and of `_inputs`."""

        def layers(x: Tensor, *inputs: Tensor) -> Tensor:
            return self._decoder.forward_layers(_with_inputs(plan, iter(inputs)), x, cache)

        return trace(layers, (x, *inputs))


def _is_traceable(layer: LayerWeights, dtype: torch.dtype) -> bool:
    matrices = (layer.qkv, layer.o, layer.gate_up, layer.down)
    return layer.experts is None and all(matrix.is_traceable(dtype) for matrix in matrices)


def _inputs(plan: TorchPlan) -> Sequence[Tensor] | None:
    """Return the tensors that change from decode step to decode step; None for other plans."""
    row, full = plan.attention[0], plan.full_attention[0]
    if (
        plan.slot_views is None
        or row.kv_views is None
        or row.mask is not None
        or full.mask is not None
    ):
        return None
    return [*chain(*plan.cos_sin), *chain(*row.kv_views), *plan.slot_views]


def _with_inputs(plan: TorchPlan, inputs: Iterator[Tensor]) -> TorchPlan:
    """Return the plan with its tensors replaced by `inputs`, in the order of `_inputs`."""
    assert plan.slot_views is not None
    cos_sin = [(next(inputs), next(inputs)) for _ in plan.cos_sin]
    kv_views = [(next(inputs), next(inputs)) for _ in plan.slot_views]
    row = replace(plan.attention[0], kv_views=kv_views)
    return replace(
        plan, cos_sin=cos_sin, attention=[row], full_attention=[row], slot_views=list(inputs)
    )
