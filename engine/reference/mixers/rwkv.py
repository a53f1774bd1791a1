"""RWKV-4: time mixing and channel mixing.

Peng et al., 2023 (arXiv:2305.13048). For each channel the output of time mixing is a mean of the
values v_i so far, with weights exp(k_i − (t − 1 − i)·w), and exp(u + k_t) for the current token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.mixer_weights import ChannelMixWeights, MixerWeights
from swiftchat.engine.model.state_cache import LayerStates, StateRows

_CHUNK_TOKENS = 16  # of which all pairs have a weight for each channel
_NO_TOKEN = -1e38  # the logarithm of the weights' sum before the first token


def time_mix(
    x: Tensor, weights: MixerWeights, groups: Sequence[StateRows], states: LayerStates
) -> Tensor:
    """Return the time mixing of x [n, hidden_size] in the same shape, and advance the states.

    `states` fp32: the last input [num_slots, hidden_size], and numerator, denominator and their
    common logarithmic scale [num_slots, width]. w is exp(`decay`), u is `skip`.
    """
    decay, skip, means = weights.decay, weights.skip, weights.means
    key, value = weights.project_key, weights.project_value
    assert decay is not None and skip is not None and means is not None
    assert key is not None and value is not None
    before = previous_tokens(x, groups, states[0])
    k, v, r = (
        project.matmul(_mean(x, before, mean))
        for project, mean in zip((key, value, weights.project_in), means, strict=True)
    )
    out = r.new_empty(r.shape)
    for group in groups:
        keys, values = (each[group.rows].view(group.num_seqs, -1, k.shape[1]) for each in (k, v))
        sums = group.read(states[1:4])
        mixed, after = weighted_means(keys.float(), values.float(), decay.exp(), skip, sums)
        group.write(states[1:4], after)
        out.index_copy_(0, group.rows, mixed.reshape(len(group.rows), -1).to(out.dtype))
    return weights.project_out.matmul(out * r.sigmoid())


def channel_mix(
    x: Tensor,
    key: LinearWeight,
    value: LinearWeight,
    weights: ChannelMixWeights,
    groups: Sequence[StateRows],
    states: LayerStates,
) -> Tensor:
    """Return the channel mixing of x [n, hidden_size] in the same shape, and advance its state.

    The last of `states`, fp32 [num_slots, hidden_size], is the last input.
    """
    before = previous_tokens(x, groups, states[-1])
    of_key, of_gate = weights.means
    inner = key.matmul(_mean(x, before, of_key)).relu().square()
    return value.matmul(inner) * weights.gate.matmul(_mean(x, before, of_gate)).sigmoid()


def previous_tokens(x: Tensor, groups: Sequence[StateRows], state: Tensor) -> Tensor:
    """Return the row of the token before for each row of x, fp32; store the last ones."""
    before = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    for group in groups:
        rows = x[group.rows].float().view(group.num_seqs, -1, x.shape[1])
        (last,) = group.read((state,))
        shifted = torch.cat([last.unsqueeze(1), rows[:, :-1]], 1)
        before.index_copy_(0, group.rows, shifted.view(-1, x.shape[1]))
        group.write((state,), (rows[:, -1],))
    return before


def _mean(x: Tensor, before: Tensor, weight: Tensor) -> Tensor:
    return (x * weight + before * (1 - weight)).to(x.dtype)


def weighted_means(
    k: Tensor, v: Tensor, decay: Tensor, skip: Tensor, sums: LayerStates
) -> tuple[Tensor, LayerStates]:
    """Return the mean for each token of k and v fp32 [num_seqs, n, width], and the sums after it.

    `decay` is w, `skip` u [width]. `sums` are numerator and denominator divided by exp(scale), and
    the scale, [num_seqs, width]. All weights are divided by the largest one: nothing overflows.
    """
    outputs = []
    numerator, denominator, scale = sums
    # States begin as zeros.
    scale = torch.where(denominator > 0, scale, _NO_TOKEN)
    for start in range(0, k.shape[1], _CHUNK_TOKENS):
        some = slice(start, start + _CHUNK_TOKENS)
        keys, values = k[:, some], v[:, some]
        times = torch.arange(keys.shape[1] + 1, device=k.device)
        # The last row is that of the sums after the chunk, in which no token is the current one.
        age = (times.unsqueeze(1) - 1 - times[:-1]).unsqueeze(2)
        logs = keys.unsqueeze(1) - age.clamp(min=0) * decay
        logs = torch.where(age < 0, float("-inf"), logs)
        current = torch.diag_embed(torch.ones_like(times[:-1], dtype=torch.bool))
        logs[:, :-1] = torch.where(current.unsqueeze(2), (keys + skip).unsqueeze(1), logs[:, :-1])
        older = scale.unsqueeze(1) - times.unsqueeze(1) * decay
        largest = torch.maximum(logs.amax(2), older)
        weights, carried = (logs - largest.unsqueeze(2)).exp_(), (older - largest).exp_()
        total = (weights * values.unsqueeze(1)).sum(2) + carried * numerator.unsqueeze(1)
        norm = weights.sum(2) + carried * denominator.unsqueeze(1)
        outputs.append(total[:, :-1] / norm[:, :-1])
        numerator, denominator, scale = total[:, -1], norm[:, -1], largest[:, -1]
    return torch.cat(outputs, 1), (numerator, denominator, scale)
