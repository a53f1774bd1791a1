"""Token mixers with a state on a GPU: decode steps, and the tokens of prompts in order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.layers.act_and_mul import KINDS
from swiftchat.cuda.ops.mixers.scans import ScanRows
from swiftchat.cuda.ops.mixers.steps import StepSlots
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.gpu.mixers.gated_delta import GatedDeltaKernels
from swiftchat.engine.gpu.mixers.kimi_delta import KimiDeltaKernels
from swiftchat.engine.gpu.mixers.kind import MixerKind
from swiftchat.engine.gpu.mixers.mamba import MambaKernels
from swiftchat.engine.gpu.mixers.mamba2 import Mamba2Kernels
from swiftchat.engine.gpu.mixers.short_conv import ShortConvKernels
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.state_cache import LayerStates, StateRows, plan_states
from swiftchat.engine.reference.activations import ACTIVATIONS
from swiftchat.engine.reference.mixers.mix import scan_groups
from swiftchat.engine.schedule.batch import Span
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.parts.mamba import Mamba
from swiftchat.weights.architectures.parts.mixers import (
    GatedDelta,
    KimiDelta,
    Mamba2,
    ShortConv,
    StateMixer,
)


@dataclass(frozen=True)
class StatePlan:
    """The states of a batch: `steps` of its first rows, and `scans` of the other rows.

    If the kernels cannot scan the model's states, torch's operators compute `groups` instead.
    """

    layers: Mapping[int, LayerStates]
    steps: StepSlots | None = None
    scans: ScanRows | None = None
    groups: Sequence[StateRows] = ()


def mixer_kernels_cover(config: ModelConfig) -> bool:
    """Return whether the kernels compute decode steps of a model's mixers, if it has any."""
    mixer = config.mixer
    if any(layer.mixer_activation not in KINDS for layer in config.layers):
        return mixer is None
    match mixer:
        case None:
            return True
        case ShortConv():
            return ShortConvKernels.cover(mixer)
        case GatedDelta():
            return GatedDeltaKernels.cover(mixer)
        case KimiDelta():
            return KimiDeltaKernels.cover(mixer)
        case Mamba2():
            return Mamba2Kernels.cover(mixer)
        case Mamba():
            return MambaKernels.cover(mixer)
    return False


def _kind(gpu: Gpu, mixer: StateMixer, activation: str) -> MixerKind:
    match mixer:
        case ShortConv():
            return ShortConvKernels(gpu)
        case GatedDelta():
            return GatedDeltaKernels(gpu, mixer, activation)
        case KimiDelta():
            return KimiDeltaKernels(gpu, mixer, activation)
        case Mamba2():
            return Mamba2Kernels(gpu, mixer, activation)
        case Mamba():
            return MambaKernels(gpu, mixer, activation)
    raise AssertionError("no kernel computes it")  # see `mixer_kernels_cover`


class MixerKernels:
    """The mixers of a model's layers on one GPU, between the projections of input and output."""

    def __init__(self, gpu: Gpu, config: ModelConfig) -> None:
        self._gpu, self._config = gpu, config
        self._activation = config.layers[0].mixer_activation
        self._kind: MixerKind | None = None
        if config.mixer is not None:
            self._kind = _kind(gpu, config.mixer, self._activation)

    @property
    def scans(self) -> bool:
        """Whether the kernels compute the tokens of prompts."""
        return self._kind is not None and self._kind.scans

    def plan(
        self,
        spans: Sequence[Span],
        positions: Tensor,
        layers: Mapping[int, LayerStates],
    ) -> StatePlan:
        """Plan the states of a batch; `positions` int32 on the device are those of all tokens.

        The first rows are steps: they have one token each, or tokens whose states are all kept.
        """
        device = self._gpu.device

        def slots(rows: Sequence[tuple[int, int]]) -> Tensor:
            return torch.tensor(rows, dtype=torch.int32).t().contiguous().to(device)

        steps: StepSlots | None = None
        rows = list(takewhile(lambda span: span.num_tokens == 1 or span.after_slots, spans))
        rest = spans[len(rows) :]
        assert not any(span.after_slots for span in rest)  # the scheduler puts decode rows first
        if rows:
            pairs = [pair for row in rows for pair in row.step_slots]
            is_chained = len(pairs) > len(rows)
            steps = StepSlots(slots(pairs), positions[: len(pairs)], chained=is_chained)
        if not rest:
            return StatePlan(layers, steps)
        if not self.scans:
            return StatePlan(layers, steps, groups=plan_states(rest, device))
        starts = list(accumulate((row.num_tokens for row in rest), initial=rest[0].start))
        on_device = torch.tensor(starts, dtype=torch.int32).to(device)
        longest = max(row.num_tokens for row in rest)
        pairs = [(row.state_slot, row.next_state_slot) for row in rest]
        return StatePlan(layers, steps, ScanRows(on_device, slots(pairs), positions, longest))

    def mix(
        self,
        plan: StatePlan,
        layer: int,
        projected: Tensor,
        weights: MixerWeights,
        ranks: Communicator,
    ) -> Tensor:
        """Return the mixed tokens T [n, width] of projections T [n, …]; advance the states.

        `ranks` divide the heads or channels of the mixer.
        """
        kind, mixer = self._kind, self._config.layers[layer].mixer
        states = plan.layers[layer]
        assert kind is not None and mixer is not None
        out = projected.new_empty(len(projected), weights.project_out.shape[1])
        if plan.scans is not None:
            # It also writes something to the rows of steps, which come next.
            kind.scan(projected, out, weights, states, plan.scans, ranks)
        elif plan.groups:
            activation = ACTIVATIONS[self._activation]
            scan_groups(projected, out, weights, mixer, plan.groups, states, activation, ranks)
        if plan.steps is not None:
            n = len(plan.steps.positions)
            kind.step(projected[:n], out[:n], weights, states, plan.steps, ranks)
        return out
