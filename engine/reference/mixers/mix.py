"""Compute the token mixers with a state, as torch calls; recurrences and convolutions in fp32."""

from collections.abc import Sequence

from torch import Tensor

from swiftchat.engine.model.mixer_weights import MixerInputs
from swiftchat.engine.model.state_cache import LayerStates, StateRows
from swiftchat.engine.reference.mixers.gated_delta import gated_delta
from swiftchat.engine.reference.mixers.kimi_delta import kimi_delta
from swiftchat.engine.reference.mixers.lightning import lightning
from swiftchat.engine.reference.mixers.mamba import mamba
from swiftchat.engine.reference.mixers.mamba2 import mamba2
from swiftchat.engine.reference.mixers.short_conv import short_conv
from swiftchat.weights.architectures.parts.lightning import Lightning
from swiftchat.weights.architectures.parts.mamba import Mamba
from swiftchat.weights.architectures.parts.mixers import (
    GatedDelta,
    KimiDelta,
    Mamba2,
    ShortConv,
    StateMixer,
)


def mix(x: Tensor, mixer: StateMixer, groups: Sequence[StateRows], inputs: MixerInputs) -> Tensor:
    """Return the output of a layer's mixer for x [n, hidden_size], and advance the states.

    With several ranks it is this rank's part of the output, before the all-reduce.
    """
    weights = inputs.weights
    projected = weights.project_in.matmul(x, weights.project_in_bias)
    out = projected.new_empty(len(x), weights.project_out.shape[1])
    scan_groups(projected, out, mixer, groups, inputs)
    return weights.project_out.matmul(out, weights.project_out_bias)


def scan_groups(
    projected: Tensor,
    out: Tensor,
    mixer: StateMixer,
    groups: Sequence[StateRows],
    inputs: MixerInputs,
) -> None:
    """Mix the rows of the groups between the projections, and advance the states.

    `projected` [n, …] are the projections of the input, `out` [n, width] receives these rows.
    """
    for group in groups:
        tokens = projected.index_select(0, group.rows).view(group.num_seqs, -1, projected.shape[1])
        mixed, after = _scan(tokens, group.read(inputs.states), mixer, inputs)
        group.write(inputs.states, after)
        out.index_copy_(0, group.rows, mixed.reshape(len(group.rows), -1).to(out.dtype))


def _scan(
    tokens: Tensor, states: LayerStates, mixer: StateMixer, inputs: MixerInputs
) -> tuple[Tensor, LayerStates]:
    """Return the mixed tokens [num_seqs, n, width] and the states after them, for projections."""
    match mixer:
        case ShortConv():
            return short_conv(tokens, states, inputs)
        case GatedDelta():
            return gated_delta(tokens, states, mixer, inputs)
        case KimiDelta():
            return kimi_delta(tokens, states, mixer, inputs)
        case Mamba2():
            return mamba2(tokens, states, mixer, inputs)
        case Lightning():
            return lightning(tokens, states, mixer, inputs)
        case Mamba():
            return mamba(tokens, states, mixer, inputs)
    raise NotImplementedError(type(mixer).__name__)
