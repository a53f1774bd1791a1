"""A decoder's layers on the CPU without Python between their operators."""

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

# Recording takes as long as it saves in some forty steps; a short answer shall not wait for it.
_STEPS_BEFORE = 8


class TracedLayers:
    """`Decoder.through_layers`, recorded for steps of one token.

    In a step of a small model most of the time between two products is Python's. So after a few
    steps torch writes down the operators that the layers call (`torch.jit.trace`), and calls the
    same ones from then on: the same numbers to the last bit. What is not one token of one sequence
    whose context is a view of the cache is computed as ever. The decoder's weights must stay those
    they are; torch keeps them, with the recording, for as long as the process lives.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._num_steps = 0
        self._recorded: Callable[..., Tensor] | None = None

    @property
    def has_record(self) -> bool:
        return self._recorded is not None

    @staticmethod
    def suit(decoder: Decoder, device: torch.device) -> bool:
        """Whether a model's steps can be recorded, and it is worth while.

        Not with experts, whom numbers choose; nor from Python 3.14 on, where torch does not vouch
        for its recordings.
        """
        return (
            device.type == "cpu"
            and sys.version_info < (3, 14)
            and decoder.ranks.size == decoder.stages.size == 1
            and all(_layer_fits(layer, decoder.weights.dtype) for layer in decoder.weights.layers)
        )

    def __call__(self, plan: TorchPlan, x: Tensor, cache: KVCache) -> Tensor:
        inputs = _inputs(plan) if x.shape[0] == 1 else None
        self._num_steps += inputs is not None
        if inputs is None or self._num_steps <= _STEPS_BEFORE:
            return self._decoder.through_layers(plan, x, cache)
        if self._recorded is None:
            self._recorded = self._record(plan, x.clone(), inputs, cache)
        return run_traced(self._recorded, x, *inputs)

    def _record(
        self, plan: TorchPlan, x: Tensor, inputs: Sequence[Tensor], cache: KVCache
    ) -> Callable[..., Tensor]:
        """The layers as a function of the stream, which it destroys, and of `_inputs`."""

        def layers(x: Tensor, *inputs: Tensor) -> Tensor:
            return self._decoder.through_layers(_with(plan, iter(inputs)), x, cache)

        return trace(layers, (x, *inputs))


def _layer_fits(layer: LayerWeights, dtype: torch.dtype) -> bool:
    matrices = (layer.qkv, layer.o, layer.gate_up, layer.down)
    return layer.experts is None and all(matrix.is_traceable(dtype) for matrix in matrices)


def _inputs(plan: TorchPlan) -> Sequence[Tensor] | None:
    """All that differs between the plans of two steps of one token, as far as layers read it.

    None for a plan that has anything else.
    """
    row, full = plan.attention[0], plan.full_attention[0]
    if plan.places is None or row.contexts is None or row.mask is not None or full.mask is not None:
        return None
    return [*chain(*plan.angles), *chain(*row.contexts), *plan.places]


def _with(plan: TorchPlan, inputs: Iterator[Tensor]) -> TorchPlan:
    """The plan with `_inputs` in their places."""
    assert plan.places is not None
    angles = [(next(inputs), next(inputs)) for _ in plan.angles]
    contexts = [(next(inputs), next(inputs)) for _ in plan.places]
    row = replace(plan.attention[0], contexts=contexts)
    return replace(plan, angles=angles, attention=[row], full_attention=[row], places=list(inputs))
