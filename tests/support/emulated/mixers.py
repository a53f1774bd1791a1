"""The kernels of token mixers with a state as torch calls on the CPU; see `kernels.py`."""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.reference.activations import ACTIVATIONS


def _state(states: Tensor, slot: int) -> Tensor:
    return torch.zeros_like(states[0]) if slot < 0 else states[slot]


def _steps(a: Any) -> Iterator[tuple[int, int, int]]:
    """Yield each row with the slots before and after it, the first below 0 at the beginning.

    Unused rows get zeros.
    """
    odd = 0 if a.step is None else int(a.step) % 2
    reads, writes = a.slots[odd].tolist(), a.slots[1 - odd].tolist()
    used = [row for row in range(len(a.positions)) if writes[row] >= 0]
    firsts = [row for row in used if not row or reads[row] != writes[row - 1]]
    # Blocks of one row, or of rows that continue it, read what no other block may write.
    assert a.defines["CHAINED"] == "1" or firsts == used
    slots = [reads[row] for row in firsts] + [writes[row] for row in used]
    assert len(slots) == len(set(slots)) and min(slots, default=0) >= 0
    for row, position in enumerate(a.positions.tolist()):
        if row in used:
            yield row, (reads[row] if position else -1), writes[row]
        else:
            a.out[row] = 0


def _rows(a: Any) -> list[tuple[slice, int, int]]:
    """Return the tokens of each sequence that has some, and its slots before and after them."""
    spans = [slice(*pair) for pair in pairwise(a.starts.tolist())]
    pairs = zip(*a.slots.tolist(), strict=True)
    return [
        (span, before if a.positions[span.start] else -1, after)
        for span, (before, after) in zip(spans, pairs, strict=True)
        if span.start < span.stop
    ]


def _convolve(a: Any, inputs: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Return the convolution of inputs [tokens, channels], and the inputs before the next token."""
    tokens = torch.cat([before, inputs.t()], 1)
    # Of so few tokens this takes a fraction of `conv1d`'s time.
    taps = [tokens[:, i : i + len(inputs)] * tap.unsqueeze(1) for i, tap in enumerate(a.conv.t())]
    mixed = torch.stack(taps).sum(0).t()
    bias = getattr(a, "conv_bias", None)
    if bias is not None:
        mixed = mixed + bias
    kept, name = before.shape[1], a.defines["ACTIVATION"].lower()
    return (mixed if name == "none" else ACTIVATIONS[name](mixed)), tokens[:, -kept:]


def _convolve_rows(a: Any, columns: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output of a convolution for some tokens, and the inputs before the next one."""
    if a.defines["GATED"] == "0":
        return _convolve(a, columns[:, : a.num_channels], before)
    b, c, x = columns.split(a.num_channels, 1)
    mixed, kept = _convolve(a, b * x, before)
    return c * mixed, kept


def _causal_conv_step(a: Any) -> None:
    for row, before, after in _steps(a):
        columns = a.projected[row : row + 1]
        mixed, a.conv_states[after] = _convolve_rows(a, columns, _state(a.conv_states, before))
        a.out[row] = mixed[0]


def _causal_conv(a: Any) -> None:
    channels = torch.arange(a.num_channels)
    scales = torch.full((a.num_channels,), a.c_scale)
    scales[channels < a.b_end] = a.b_scale
    scales[channels < a.x_end] = a.x_scale
    is_gated = a.defines["GATED"] == "1"
    assert not is_gated or bool((scales == 1).all())
    for span, before, after in _rows(a):
        columns = a.projected[span, a.first_column :]
        if not is_gated:
            columns = columns[:, : a.num_channels] * scales
        a.out[span], a.conv_states[after] = _convolve_rows(
            a, columns, _state(a.conv_states, before)
        )


def _delta(
    a: Any, mixed: Tensor, beta: Tensor, steps: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the outputs [tokens, heads, dim] and the state after them, one token at a time."""
    width, n, repeats = a.num_key_heads * a.key_dim, len(mixed), a.num_heads // a.num_key_heads
    queries, keys = (
        (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(repeats, 1)
        for x in mixed[:, : 2 * width].reshape(n, 2, a.num_key_heads, a.key_dim).unbind(1)
    )
    values = mixed[:, 2 * width :].reshape(n, a.num_heads, a.value_dim)
    bias = a.step_bias.view(a.num_heads, -1)
    decays = -a.decay.exp().unsqueeze(1) * F.softplus(steps.reshape(n, *bias.shape) + bias)
    outputs = []
    for q, k, v, g, b in zip(queries, keys, values, decays, beta.sigmoid(), strict=True):
        state = state * g.exp().unsqueeze(2)
        update = (v - torch.einsum("hkv,hk->hv", state, k)) * b.unsqueeze(1)
        state = state + k.unsqueeze(2) * update.unsqueeze(1)
        outputs.append(torch.einsum("hkv,hk->hv", state, q) * a.key_dim**-0.5)
    return torch.stack(outputs), state


def _delta_inputs(a: Any, rows: slice, channels: int) -> tuple[Tensor, Tensor]:
    """Return β and the steps of decays."""
    if a.defines["KEY_DECAYS"] == "1":
        return a.projected[rows, channels : channels + a.num_heads], a.key_steps[rows]
    beta, steps = a.projected[rows, channels + a.num_heads * a.value_dim :].chunk(2, 1)
    return beta, steps


def _gated_delta_step(a: Any) -> None:
    channels = len(a.conv)
    for row, before, after in _steps(a):
        rows = slice(row, row + 1)
        inputs = a.projected[rows, :channels]
        mixed, a.conv_states[after] = _convolve(a, inputs, _state(a.conv_states, before))
        beta, steps = _delta_inputs(a, rows, channels)
        out, a.states[after] = _delta(a, mixed, beta, steps, _state(a.states, before))
        if a.defines["KEY_DECAYS"] == "1":
            gates = a.output_gates[row].sigmoid()
        else:
            gates = F.silu(a.projected[row, channels : channels + a.num_heads * a.value_dim])
        a.out[row] = F.rms_norm(out, (a.value_dim,), a.norm, a.norm_eps).view(-1) * gates


def _gated_delta_scan(a: Any) -> None:
    for span, before, after in _rows(a):
        beta, steps = _delta_inputs(a, span, a.mixed.shape[1])
        state = _state(a.states, before)
        out, a.states[after] = _delta(a, a.mixed[span], beta, steps, state)
        a.out[span] = out.flatten(1)


def _mamba2(a: Any, mixed: Tensor, steps: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs [tokens, width] and the state after them, one token at a time."""
    n, width, shared = len(mixed), a.num_heads * a.head_dim, a.num_groups * a.state_size
    x, b, c = mixed.split([width, shared, shared], 1)
    x = x.reshape(n, a.num_heads, a.head_dim)
    b, c = (
        y.reshape(n, a.num_groups, -1).repeat_interleave(a.num_heads // a.num_groups, 1)
        for y in (b, c)
    )
    deltas = F.softplus(a.step_scale * steps + a.step_bias).clamp(min=a.min_step)
    outputs = []
    for x1, b1, c1, delta in zip(x, b, c, deltas, strict=True):
        forget = (-a.decay.exp() * delta).exp()
        added = (delta.unsqueeze(1) * x1).unsqueeze(2) * b1.unsqueeze(1)
        state = state * forget.view(-1, 1, 1) + added
        out = torch.einsum("hps,hs->hp", state, c1) + a.skip.unsqueeze(1) * x1
        outputs.append(out.view(-1))
    return torch.stack(outputs), state


def _mamba2_gated(a: Any, out: Tensor, rows: slice) -> Tensor:
    return out * F.silu(a.z_scale * a.projected[rows, : out.shape[1]]) if a.gated else out


def _mamba2_step(a: Any) -> None:
    width, shared = a.num_heads * a.head_dim, a.num_groups * a.state_size
    ends = (width, a.x_scale), (shared, a.b_scale), (shared, a.c_scale)
    scales = torch.cat([torch.full((size,), scale) for size, scale in ends])
    for row, before, after in _steps(a):
        rows = slice(row, row + 1)
        inputs = a.projected[rows, width : width + len(a.conv)] * scales
        mixed, a.conv_states[after] = _convolve(a, inputs, _state(a.conv_states, before))
        steps = a.projected[rows, -a.num_heads :]
        out, a.states[after] = _mamba2(a, mixed, steps, _state(a.states, before))
        a.out[row] = _mamba2_gated(a, out, rows)[0]


def _mamba2_scan(a: Any) -> None:
    for span, before, after in _rows(a):
        steps, state = a.projected[span, -a.num_heads :], _state(a.states, before)
        out, a.states[after] = _mamba2(a, a.mixed[span], steps, state)
        a.out[span] = _mamba2_gated(a, out, span)


def _selective(a: Any, token: int, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output of a token and the state after it."""
    delta, x = F.softplus(a.steps[token] + a.step_bias), a.x[token]
    forget = (-a.decay.exp() * delta.unsqueeze(1)).exp()
    state = forget * state + (delta * x).unsqueeze(1) * a.b[token]
    return (state @ a.c[token] + a.skip * x) * F.silu(a.gates[token]), state


def _selective_step(a: Any) -> None:
    for row, before, after in _steps(a):
        a.out[row], a.states[after] = _selective(a, row, _state(a.states, before))


def _selective_scan(a: Any) -> None:
    for span, before, after in _rows(a):
        state = _state(a.states, before)
        for token in range(span.start, span.stop):
            a.out[token], state = _selective(a, token, state)
        a.states[after] = state


def _gated_norm(a: Any) -> None:
    groups = a.x.view(len(a.x), -1, a.group_size)
    normed = groups * (groups.square().mean(2, keepdim=True) + a.eps).rsqrt()
    normed = (normed * a.weight.view(-1, a.group_size)).flatten(1)
    if a.gates is not None:
        normed = normed * F.silu(a.gate_scale * a.gates[:, : a.width])
    a.out.copy_(normed)


MIXERS: Mapping[str, Callable[[Any], None]] = MappingProxyType(
    {
        "causal_conv_step": _causal_conv_step,
        "causal_conv": _causal_conv,
        "gated_delta_step": _gated_delta_step,
        "gated_delta_scan": _gated_delta_scan,
        "mamba2_step": _mamba2_step,
        "mamba2_scan": _mamba2_scan,
        "selective_step": _selective_step,
        "selective_scan": _selective_scan,
        "gated_norm": _gated_norm,
    }
)
