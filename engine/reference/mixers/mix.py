"""Compute the token mixers with a state, as torch calls; recurrences and convolutions in fp32."""

from collections.abc import Sequence

from torch import Tensor

from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.state_cache import LayerStates, StateRows
from swiftchat.engine.reference.mixers.gated_delta import gated_delta
from swiftchat.engine.reference.mixers.kimi_delta import kimi_delta
from swiftchat.engine.reference.mixers.lightning import lightning
from swiftchat.engine.reference.mixers.mamba import mamba
from swiftchat.engine.reference.mixers.mamba2 import mamba2
from swiftchat.engine.reference.mixers.short_conv import Activation, short_conv
from swiftchat.weights.architectures.parts.lightning import Lightning
from swiftchat.weights.architectures.parts.mamba import Mamba
from swiftchat.weights.architectures.parts.mixers import (
    GatedDelta,
    KimiDelta,
    Mamba2,
    ShortConv,
    StateMixer,
)


def mix(
    x: Tensor,
    weights: MixerWeights,
    mixer: StateMixer,
    groups: Sequence[StateRows],
    states: LayerStates,
    activation: Activation,
    ranks: Communicator,
) -> Tensor:
    """Return the output of a layer's mixer for x [n, hidden_size], and advance the states.

    `activation` is the model's, of the convolution. With several `ranks` it is this rank's part of
    the output, before the all-reduce.
    """
    projected = weights.project_in.matmul(x, weights.project_in_bias)
    out = projected.new_empty(len(x), weights.project_out.shape[1])
    scan_groups(projected, out, weights, mixer, groups, states, activation, ranks)
    return weights.project_out.matmul(out, weights.project_out_bias)


def scan_groups(
    projected: Tensor,
    out: Tensor,
    weights: MixerWeights,
    mixer: StateMixer,
    groups: Sequence[StateRows],
    states: LayerStates,
    activation: Activation,
    ranks: Communicator,
) -> None:
    """Mix the rows of the groups between the projections, and advance the states.

    `projected` [n, …] are the projections of the input, `out` [n, width] receives these rows.
    `ranks` are those that divide the mixer.
    """
    for group in groups:
        inputs = projected.index_select(0, group.rows).view(group.num_seqs, -1, projected.shape[1])
        mixed, after = _scan(inputs, group.read(states), weights, mixer, activation, ranks)
        group.write(states, after)
        out.index_copy_(0, group.rows, mixed.reshape(len(group.rows), -1).to(out.dtype))


def _scan(
    inputs: Tensor,
    states: LayerStates,
    weights: MixerWeights,
    mixer: StateMixer,
    activation: Activation,
    ranks: Communicator,
) -> tuple[Tensor, LayerStates]:
    """Return the mixed tokens [num_seqs, n, width] and the states after them, for projections."""
    match mixer:
        case ShortConv():
            return short_conv(inputs, states, weights)
        case GatedDelta():
            return gated_delta(inputs, states, mixer, weights, activation)
        case KimiDelta():
            return kimi_delta(inputs, states, mixer, weights, activation)
        case Mamba2():
            return mamba2(inputs, states, mixer, weights, activation, ranks)
        case Lightning():
            return lightning(inputs, states, mixer, weights, activation)
        case Mamba():
            return mamba(inputs, states, mixer, weights, activation, ranks)
    raise NotImplementedError(type(mixer).__name__)
