"""Mamba: a state space model with a decay for each element of its state.

Gu and Dao, 2023 (arXiv:2312.00752). With h the state of a channel, Δ > 0 its step, a < 0 a vector:
h ← exp(Δ·a)·h + Δ·x·b, and the output is h·c + d·x; b and c are shared by all channels.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.model.mixer_weights import MixerInputs, MixerWeights
from swiftchat.engine.model.state_cache import LayerStates
from swiftchat.engine.reference.mixers.scan import CHUNK_TOKENS
from swiftchat.engine.reference.mixers.short_conv import causal_conv
from swiftchat.weights.architectures.parts.mamba import Mamba


def mamba(
    tokens: Tensor, states: LayerStates, mixer: Mamba, inputs: MixerInputs
) -> tuple[Tensor, LayerStates]:
    """Mix projections [num_seqs, n, 2 * width]: x and output gates.

    Returns fp32 [num_seqs, n, width] and the states after them: the last tokens of the convolution,
    and h fp32 [num_seqs, width, state_size]. a is −exp(`decay`), d is `skip`. `ranks` divide the
    channels.
    """
    weights = inputs.weights
    x, z = tokens.float().chunk(2, -1)
    mixed, last = causal_conv(x, states[0], weights.conv, weights.conv_bias)
    x = inputs.activate(mixed)
    out, after = _scanned(x, states[1], mixer, weights, inputs.ranks)
    return out * F.silu(z), (last, after)


def _scanned(
    x: Tensor, state: Tensor, mixer: Mamba, weights: MixerWeights, ranks: Communicator
) -> tuple[Tensor, Tensor]:
    """Return the outputs before the gates for x, and the state after it."""
    decay, step_bias, skip = weights.decay, weights.step_bias, weights.skip
    project_step = weights.project_step
    assert decay is not None and step_bias is not None and skip is not None
    assert project_step is not None
    step, b, c = split_projections(x, mixer, weights, ranks)
    step = F.softplus(step @ project_step.t() + step_bias)
    out, after = selective_scan(x * step, b, c, step, -decay.exp(), state)
    return out + x * skip, after


def split_projections(
    x: Tensor, mixer: Mamba, weights: MixerWeights, ranks: Communicator
) -> Sequence[Tensor]:
    """Return the normalized projections of x fp32 [..., width]: what makes steps, b and c.

    They are functions of the channels of all ranks.
    """
    assert weights.project_x is not None
    sizes = [mixer.step_rank, *(mixer.state_size,) * 2]
    parts = torch.split(ranks.all_reduce(x @ weights.project_x.t()), sizes, -1)
    norms = (weights.step_norm, weights.b_norm, weights.c_norm)
    return [_normed(part, norm, mixer) for part, norm in zip(parts, norms, strict=True)]


def _normed(x: Tensor, weight: Tensor | None, mixer: Mamba) -> Tensor:
    return x if mixer.norm_eps is None else F.rms_norm(x, x.shape[-1:], weight, mixer.norm_eps)


def selective_scan(
    x: Tensor, b: Tensor, c: Tensor, step: Tensor, decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return h·c for each token, with h ← exp(step · decay)·h + x·b, and the last h; in fp32.

    x and `step` are [num_seqs, n, width], b and c [num_seqs, n, state_size], `decay` [width,
    state_size], `state` [num_seqs, width, state_size]. The tokens of a chunk are summed by a
    parallel scan (Hillis and Steele, 1986), which multiplies decays only, all at most 1.
    """
    outputs = []
    for start in range(0, x.shape[1], CHUNK_TOKENS):
        some = slice(start, start + CHUNK_TOKENS)
        decays = (step[:, some].unsqueeze(3) * decay).exp_()
        sums = x[:, some].unsqueeze(3) * b[:, some].unsqueeze(2)
        distance = 1
        while distance < sums.shape[1]:
            later, earlier = slice(distance, None), slice(None, -distance)
            sums[:, later] = sums[:, later] + decays[:, later] * sums[:, earlier]
            decays[:, later] = decays[:, later] * decays[:, earlier]
            distance *= 2
        sums.addcmul_(decays, state.unsqueeze(1))
        outputs.append((sums @ c[:, some].unsqueeze(3)).squeeze(3))
        state = sums[:, -1]
    return torch.cat(outputs, 1), state
