"""The KV cache of `--kv-dtype int5`: rotated heads, keys of 6 bits and values of 5.

A Hadamard rotation (QuaRot: Ashkboos et al., 2024, arXiv:2404.00456) spreads a head's large
elements over all of them, so that one scale suffices for a head. With 4 bits for everything,
perplexity would still grow by some percent, mostly because of the keys, whose errors go through the
exponential function (docs/quantization.md). So keys have two more bits and values one. What a row
has beyond 4 bits an element is stored apart.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

KEY_LEVELS, VALUE_LEVELS = 32, 16  # on either side of 0
# So that a row of zeros, or of elements near fp32's smallest, can be divided by its scale.
_SMALLEST_SCALE = 2.0**-100
_CHUNK_TOKENS = 512


def rotation_size(head_dim: int) -> int:
    """Return the size of the Hadamard matrices on the diagonal of a head's rotation.

    It is the largest power of two that divides head_dim: all of most heads, 16 of 80 elements.
    """
    return head_dim & -head_dim


def rotate_heads(heads: Tensor) -> Tensor:
    """Multiply heads [..., head_dim] by their rotation, in fp32: Sylvester's Hadamard matrices.

    The rotation is orthogonal and symmetric, so it is its own inverse.
    """
    size = rotation_size(heads.shape[-1])
    x = heads.float().reshape(-1, size)
    step = 1
    while step < size:
        low, high = x.view(-1, size // (2 * step), 2, step).unbind(2)
        x = torch.stack([low + high, low - high], 2).view(-1, size)
        step *= 2
    return (x * math.pow(size, -0.5)).to(heads.dtype).view(heads.shape)


def packed_sizes(num_heads: int, head_dim: int) -> tuple[tuple[int, int], ...]:
    """Return the rows of a token and their bytes in `values`, `key_bits` and `value_bits`.

    `num_heads` counts the heads of keys and of values.
    """
    half = num_heads // 2
    return (num_heads, head_dim // 2), (half, head_dim // 4), (half, head_dim // 8)


def pack_kv(new: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rotate and quantize new [n, 2 * num_kv_heads, head_dim], key heads first.

    Returns int8 `values` [n, 2 * num_kv_heads, head_dim / 2], `key_bits` [n, num_kv_heads,
    head_dim / 4] and `value_bits` [n, num_kv_heads, head_dim / 8], and `scales` fp32
    [n, 2 * num_kv_heads]; head_dim is a multiple of 8. An element is (u - 32) * scale in keys,
    (u - 16) * scale in values. In a key, byte i of `values` has the lower four bits of u of the
    elements i and i + head_dim / 2, the former in its lower half, and byte i of `key_bits` the
    upper two bits of the elements i, i + head_dim / 4, …, the first one lowest. In a value, eight
    elements 8 i … 8 i + 7 take two little-endian 16-bit words of `values`, 2 i and 2 i + 1, and
    byte i of `value_bits`: three elements in the lower 15 bits of each word, the seventh and the
    lower bits of the eighth in the byte; the eighth's bits 3 and 4 are the upper bits of the words.
    A scale may be negative: the largest element becomes the lowest value, which has no counterpart.
    A head with an infinity or a NaN gets a scale that is not finite.
    """
    rotated = rotate_heads(new.float())
    keys, key_scales = _quantize(rotated[:, : new.shape[1] // 2], KEY_LEVELS)
    values, value_scales = _quantize(rotated[:, new.shape[1] // 2 :], VALUE_LEVELS)
    low, high = (keys & 15).chunk(2, -1)
    first, second, third, fourth = (keys >> 4).chunk(4, -1)
    key_bits = first | second << 2 | third << 4 | fourth << 6
    words, value_bits = _pack_values(values)
    rows = torch.cat([low | high << 4, words], 1)
    scales = torch.cat([key_scales, value_scales], 1)
    packed = [part.view(torch.int8) for part in (rows, key_bits, value_bits)]
    return packed[0], packed[1], packed[2], scales


def _pack_values(u: Tensor) -> tuple[Tensor, Tensor]:
    """Pack uint8 u [..., head_dim] of 5 bits to words, as bytes, and further bits."""
    e0, e1, e2, e3, e4, e5, e6, e7 = u.reshape(*u.shape[:-1], u.shape[-1] // 8, 8).unbind(-1)
    first = [e0 | e1 << 5, e1 >> 3 | e2 << 2 | (e7 & 8) << 4]
    second = [e3 | e4 << 5, e4 >> 3 | e5 << 2 | (e7 & 16) << 3]
    return torch.stack(first + second, -1).flatten(-2), e6 | e7 << 5


def _unpack_values(words: Tensor, bits: Tensor) -> Tensor:
    """Undo `_pack_values`."""
    b0, b1, b2, b3 = words.reshape(*words.shape[:-1], words.shape[-1] // 4, 4).unbind(-1)
    first = [b0, b0 >> 5 | b1 << 3, b1 >> 2]
    second = [b2, b2 >> 5 | b3 << 3, b3 >> 2]
    eighth = bits >> 5 | b1 >> 7 << 3 | b3 >> 7 << 4
    return torch.stack([*first, *second, bits, eighth], -1).flatten(-2) & 31


def _quantize(heads: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Quantize fp32 heads [..., head_dim] to uint8 values 0 … 2 * levels - 1, and scales [...]."""
    smallest, largest = heads.amin(-1), heads.amax(-1)
    scales = torch.where(largest > -smallest, largest, smallest) / -levels
    scales = scales.masked_fill_(scales.abs() < _SMALLEST_SCALE, _SMALLEST_SCALE)
    steps = (heads / scales.unsqueeze(-1)).round_().clamp_(-levels, levels - 1)
    return steps.add_(levels).nan_to_num_(0).to(torch.uint8), scales


def unpack_kv(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Undo `pack_kv` but for the rotation: [n, 2 * num_kv_heads, head_dim]."""
    *packed, scales = parts
    num_tokens, heads, half = packed[0].shape
    rows = torch.empty(num_tokens, heads, 2 * half, dtype=dtype, device=scales.device)
    # The fp32 intermediates of a chunk stay in the processor's cache.
    for start in range(0, num_tokens, _CHUNK_TOKENS):
        chunk = slice(start, start + _CHUNK_TOKENS)
        packed_rows, key_bits, value_bits = (part[chunk].view(torch.uint8) for part in packed)
        low, words = packed_rows.chunk(2, 1)
        keys = torch.cat([low & 15, low >> 4], -1)
        keys |= torch.cat([key_bits << 4, key_bits << 2, key_bits, key_bits >> 2], -1) & 48
        elements = torch.cat([keys, _unpack_values(words, value_bits)], 1)
        floats = elements.float()
        floats[:, : heads // 2] -= KEY_LEVELS
        floats[:, heads // 2 :] -= VALUE_LEVELS
        rows[chunk] = floats.mul_(scales[chunk].unsqueeze(-1))
    return rows
