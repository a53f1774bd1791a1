"""Mamba-2: a state space model with one decay for each head.

Dao and Gu, 2024 (arXiv:2405.21060). With H the state of a head, Δ > 0 a step, A < 0: H ←
exp(Δ·A)·H + Δ·x bᵀ, and the output is H c + d·x; b and c are shared by the heads of a group.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.model.mixer_weights import MixerInputs, MixerWeights
from swiftchat.engine.model.state_cache import LayerStates
from swiftchat.engine.reference.mixers.scan import CHUNK_TOKENS, pairwise_decays
from swiftchat.engine.reference.mixers.short_conv import causal_conv
from swiftchat.weights.architectures.parts.mixers import Mamba2


def mamba2(
    tokens: Tensor, states: LayerStates, mixer: Mamba2, inputs: MixerInputs
) -> tuple[Tensor, LayerStates]:
    """Mix projections [num_seqs, n, …]: output gates, x, b, c and steps.

    Returns fp32 [num_seqs, n, width] and the states after them: the last tokens of the convolution,
    and H fp32 [num_seqs, num_heads, head_dim, state_size]. A is −exp(`decay`), d is `skip`.
    `ranks` divide the heads.
    """
    weights = inputs.weights
    decay, step_bias, skip = weights.decay, weights.step_bias, weights.skip
    assert decay is not None and step_bias is not None and skip is not None
    num_seqs, n = tokens.shape[:2]
    groups = mixer.num_groups * mixer.state_size
    sizes = [mixer.width, mixer.width + 2 * groups, mixer.num_heads]
    z, mixed, step = torch.split(_scaled(tokens.float(), weights, mixer), sizes, -1)
    mixed, last = causal_conv(mixed, states[0], weights.conv, weights.conv_bias)
    x, b, c = torch.split(inputs.activate(mixed), [mixer.width, groups, groups], -1)
    x = x.reshape(num_seqs, n, mixer.num_heads, mixer.head_dim).transpose(1, 2)
    b, c = (_by_head(each, mixer) for each in (b, c))
    step = F.softplus(step + step_bias).clamp(min=mixer.min_step).transpose(1, 2)
    g = -decay.exp().unsqueeze(1) * step
    out, after = scan(x * step.unsqueeze(3), b, c, g, states[1])
    out = (out + x * skip.view(-1, 1, 1)).transpose(1, 2).reshape(z.shape)
    return _gated_norm(out, F.silu(z), weights.norm, mixer, inputs.ranks), (last, after)


def _scaled(projected: Tensor, weights: MixerWeights, mixer: Mamba2) -> Tensor:
    """Apply the scales of the input, and those of the projections [num_seqs, n, …] of it."""
    before, z, x, b, c, step = mixer.scales
    if mixer.scales == (1.0,) * 6:
        return projected
    groups = mixer.num_groups * mixer.state_size
    sizes = [mixer.width, mixer.width, groups, groups, mixer.num_heads]
    parts = zip((z, x, b, c, step), sizes, strict=True)
    scales = torch.cat([projected.new_full((size,), scale) for scale, size in parts])
    bias = weights.project_in_bias
    if before != 1.0 and bias is not None:  # it is not scaled with the input
        return (projected - bias) * (before * scales) + bias * scales
    return projected * (before * scales)


def _gated_norm(
    out: Tensor, gate: Tensor, norm: Tensor | None, mixer: Mamba2, ranks: Communicator
) -> Tensor:
    """Normalize the groups of the output [num_seqs, n, width], before or after it is gated."""
    if mixer.norm_eps is None or norm is None:
        return out * gate
    out = out if mixer.gate_last else out * gate
    normed = group_norm(out, norm, mixer, ranks)
    return normed * gate if mixer.gate_last else normed


def group_norm(x: Tensor, norm: Tensor, mixer: Mamba2, ranks: Communicator) -> Tensor:
    """Return the RMSNorm of each group of x fp32 [..., width], with weights [width].

    If `ranks` divide a group, it is that of the group's elements on all of its ranks.
    """
    assert mixer.norm_eps is not None
    grouped = x.view(*x.shape[:-1], mixer.num_groups, -1)
    if mixer.ranks_per_group == 1:
        normed = F.rms_norm(grouped, grouped.shape[-1:], eps=mixer.norm_eps)
        return normed.view(x.shape) * norm
    own = ranks.rank // mixer.ranks_per_group
    sums = x.new_zeros(*x.shape[:-1], ranks.size // mixer.ranks_per_group)
    sums[..., own] = x.square().sum(-1)
    means = ranks.all_reduce(sums)[..., own] / (mixer.width * mixer.ranks_per_group)
    return x * (means + mixer.norm_eps).rsqrt().unsqueeze(-1) * norm


def _by_head(x: Tensor, mixer: Mamba2) -> Tensor:
    """Repeat x [num_seqs, n, num_groups * state_size] for the heads of each group.

    [num_seqs, num_heads, n, state_size].
    """
    grouped = x.reshape(*x.shape[:2], mixer.num_groups, mixer.state_size)
    return grouped.repeat_interleave(mixer.num_heads // mixer.num_groups, 2).transpose(1, 2)


def scan(x: Tensor, b: Tensor, c: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return H c for each token, with H ← exp(g)·H + x bᵀ, and the last H; in fp32.

    x is [num_seqs, heads, n, head_dim], b and c [num_seqs, heads, n, state_size], g
    [num_seqs, heads, n]. The tokens of a chunk are computed together, as masked attention.
    """
    outputs = []
    for start in range(0, x.shape[2], CHUNK_TOKENS):
        some = slice(start, start + CHUNK_TOKENS)
        values, keys, queries = x[:, :, some], b[:, :, some], c[:, :, some]
        total = g[:, :, some].cumsum(2)
        inside = (queries @ keys.transpose(2, 3) * pairwise_decays(total)) @ values
        before = total.exp().unsqueeze(3) * (queries @ state.transpose(2, 3))
        outputs.append(before + inside)
        to_end = (total[..., -1:] - total).exp().unsqueeze(3)
        added = (values * to_end).transpose(2, 3) @ keys
        state = state * total[..., -1, None, None].exp() + added
    return torch.cat(outputs, 2), state
