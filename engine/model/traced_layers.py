"""A decoder's layers on the CPU without Python between their operators."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from swiftchat.engine.linear.merged import MergedWeight
from swiftchat.engine.linear.quantized import Int4Weight, Int8GroupsWeight, Int8Weight, Weight
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
        # The optimizer would take a fifth of a second and find nothing.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return self._recorded(x, *inputs)

    def _record(
        self, plan: TorchPlan, x: Tensor, inputs: Sequence[Tensor], cache: KVCache
    ) -> Callable[..., Tensor]:
        """The layers as a function of the stream, which it destroys, and of `_inputs`."""

        def layers(x: Tensor, *inputs: Tensor) -> Tensor:
            return self._decoder.through_layers(_with(plan, iter(inputs)), x, cache)

        with warnings.catch_warnings():
            # That it is deprecated, and which numbers are taken for constants.
            warnings.simplefilter("ignore")
            recorded: Callable[..., Tensor] = torch.jit.trace(  # type: ignore[no-untyped-call]
                layers, (x, *inputs), check_trace=False
            )
        return recorded


def _layer_fits(layer: LayerWeights, dtype: torch.dtype) -> bool:
    matrices = (layer.qkv, layer.o, layer.gate_up, layer.down)
    return layer.experts is None and all(_fits(matrix, dtype) for matrix in matrices)


def _fits(matrix: Weight, dtype: torch.dtype) -> bool:
    """Whether one operator multiplies it with a row; torch cannot record how tiles are decoded."""
    if isinstance(matrix, MergedWeight):
        return all(_fits(part, dtype) for part in matrix.parts)
    if isinstance(matrix, Int4Weight | Int8GroupsWeight):
        return dtype == torch.bfloat16
    if isinstance(matrix, Int8Weight):
        return dtype == torch.bfloat16 and matrix.decode is None
    return isinstance(matrix, Tensor)


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
