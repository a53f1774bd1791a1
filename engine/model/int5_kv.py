"""The KV cache of `--kv-dtype int5`: rotated heads, and 4 bits an element plus a few more.

A Hadamard rotation (QuaRot: Ashkboos et al., 2024, arXiv:2404.00456) spreads a head's large
elements over all of them, so that one scale suffices for a head. With 4 bits for everything,
perplexity would still grow by some percent, mostly because of the keys, whose errors go through the
exponential function (docs/quantization.md). So keys have two more bits and values one, which are
stored apart.
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
    (u - 16) * scale in values. Byte i of `values` has the lower four bits of u of the elements i
    and i + head_dim / 2, the former in its lower half. Byte i of `key_bits` has the upper two bits
    of a key's elements i, i + head_dim / 4, …, the first one lowest. `value_bits` has the fifth
    bits of values, for each byte of `values` two, in the same order. A scale may be negative: the
    largest element becomes the lowest value, which has no counterpart. A head with an infinity or a
    NaN gets a scale that is not finite.
    """
    rotated = rotate_heads(new.float())
    keys, key_scales = _quantize(rotated[:, : new.shape[1] // 2], KEY_LEVELS)
    values, value_scales = _quantize(rotated[:, new.shape[1] // 2 :], VALUE_LEVELS)
    low, high = torch.cat([keys & 15, values & 15], 1).chunk(2, -1)
    first, second, third, fourth = (keys >> 4).chunk(4, -1)
    key_bits = first | second << 2 | third << 4 | fourth << 6
    low_bits, high_bits = (values >> 4).chunk(2, -1)
    two = low_bits | high_bits << 1
    first, second, third, fourth = (two[..., i::4] for i in range(4))
    value_bits = first | second << 2 | third << 4 | fourth << 6
    scales = torch.cat([key_scales, value_scales], 1)
    packed = [part.view(torch.int8) for part in (low | high << 4, key_bits, value_bits)]
    return packed[0], packed[1], packed[2], scales


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
        nibbles, key_bits, value_bits = (part[chunk].view(torch.uint8) for part in packed)
        elements = torch.cat([nibbles & 15, nibbles >> 4], -1)
        keys, values = elements.chunk(2, 1)
        keys |= torch.cat([key_bits << 4, key_bits << 2, key_bits, key_bits >> 2], -1) & 48
        two = torch.stack([value_bits >> shift for shift in (0, 2, 4, 6)], -1).flatten(-2)
        values |= torch.cat([two << 4, two << 3], -1) & 16
        floats = elements.float()
        floats[:, : heads // 2] -= KEY_LEVELS
        floats[:, heads // 2 :] -= VALUE_LEVELS
        rows[chunk] = floats.mul_(scales[chunk].unsqueeze(-1))
    return rows
