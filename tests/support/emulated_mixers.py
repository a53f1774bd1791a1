"""The kernels of Kimi Delta Attention as torch calls on the CPU; see `emulated_kernels.py`."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.model.activations import ACTIVATIONS


def _convolve(a: Any, inputs: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Return the convolution of inputs [tokens, channels], and the inputs before the next token."""
    tokens = torch.cat([before, inputs.t()], 1)
    mixed = F.conv1d(tokens.unsqueeze(0), a.conv.unsqueeze(1), groups=len(a.conv))[0].t()
    kept = before.shape[1]
    return ACTIVATIONS[a.defines["ACTIVATION"].lower()](mixed), tokens[:, -kept:]


def _recur(
    a: Any, mixed: Tensor, beta: Tensor, steps: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the outputs [tokens, heads, dim] and the state after them, one token at a time."""
    assert a.defines["KEY_DECAYS"] == "1"
    width, n, repeats = a.num_key_heads * a.key_dim, len(mixed), a.num_heads // a.num_key_heads
    queries, keys = (
        (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(repeats, 1)
        for x in mixed[:, : 2 * width].reshape(n, 2, a.num_key_heads, a.key_dim).unbind(1)
    )
    values = mixed[:, 2 * width :].reshape(n, a.num_heads, a.value_dim)
    bias = a.step_bias.view(a.num_heads, -1)
    decays = -a.decay.exp().unsqueeze(1) * F.softplus(steps.view(n, *bias.shape) + bias)
    outputs = []
    for q, k, v, g, b in zip(queries, keys, values, decays, beta.sigmoid(), strict=True):
        state = state * g.exp().unsqueeze(2)
        update = (v - torch.einsum("hkv,hk->hv", state, k)) * b.unsqueeze(1)
        state = state + k.unsqueeze(2) * update.unsqueeze(1)
        outputs.append(torch.einsum("hkv,hk->hv", state, q) * a.key_dim**-0.5)
    return torch.stack(outputs), state


def _slots(a: Any, row: int, position: int) -> tuple[int, int]:
    """Return the slots before and after a row, the first below 0 at the beginning."""
    pair = a.slots.view(2, -1)[:, row].tolist()
    return (pair[0] if position else -1), pair[1]


def _state(states: Tensor, slot: int) -> Tensor:
    return torch.zeros_like(states[0]) if slot < 0 else states[slot]


def _gated_delta_step(a: Any) -> None:
    channels = len(a.conv)
    for row, position in enumerate(a.positions.tolist()):
        before, after = _slots(a, row, position)
        if after < 0:  # unused
            a.out[row] = 0
            continue
        columns = a.projected[row : row + 1]
        mixed, kept = _convolve(a, columns[:, :channels], _state(a.conv_states, before))
        beta = columns[:, channels : channels + a.num_heads]
        steps = a.key_steps[row : row + 1]
        out, state = _recur(a, mixed, beta, steps, _state(a.states, before))
        normed = F.rms_norm(out, (a.value_dim,), a.norm, a.norm_eps)
        a.out[row] = normed.view(-1) * a.output_gates[row].sigmoid()
        a.states[after], a.conv_states[after] = state, kept


def _rows(a: Any) -> list[tuple[slice, int, int]]:
    """Return the tokens of each sequence, and its slots before and after them."""
    starts = a.starts.tolist()
    spans = [slice(*pair) for pair in pairwise(starts)]
    return [(s, *_slots(a, i, int(a.positions[s.start]))) for i, s in enumerate(spans)]


def _causal_conv(a: Any) -> None:
    for span, before, after in _rows(a):
        inputs = a.projected[span, : a.num_channels]
        a.out[span], a.conv_states[after] = _convolve(a, inputs, _state(a.conv_states, before))


def _gated_delta_scan(a: Any) -> None:
    for span, before, after in _rows(a):
        first = a.mixed.shape[1]
        beta = a.projected[span, first : first + a.num_heads]
        state = _state(a.states, before)
        out, a.states[after] = _recur(a, a.mixed[span], beta, a.key_steps[span], state)
        a.out[span] = out.flatten(1)


MIXERS: Mapping[str, Callable[[Any], None]] = MappingProxyType(
    {
        "gated_delta_step": _gated_delta_step,
        "causal_conv": _causal_conv,
        "gated_delta_scan": _gated_delta_scan,
    }
)
