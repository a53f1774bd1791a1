"""The ggml types whose values are points of a grid: IQ1, IQ2 and IQ3.

A grid is a set of vectors of 8 or 4 digits. Its points in ascending order, the first digit as the
lowest, have the indices that blocks store. `ggml_grids.bin` has a bit for each possible vector, one
grid after another, in whole bytes, the lowest bit first.

The function of a type takes blocks as uint8 [blocks, block bytes] and returns its scales, float32
[blocks, n], and values, float32 [blocks, 256]; a scale belongs to 256 / n of them. Docstrings give
the fields of a block and the value of an element.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.arrays import Bytes, Floats
from swiftchat.weights.formats.ggml_unpack import FOUR, LOW_4_BITS, float16_at, view_of

ScalesAndValues = tuple[Floats, Floats]
Integers = npt.NDArray[np.integer[Any]]

_FILE = Path(__file__).with_name("ggml_grids.bin")
# In the order of the file: the number of possible digits, and digits of a point.
_SIZES: Mapping[str, tuple[int, int]] = {
    "IQ2_XXS": (3, 8),
    "IQ2_XS": (3, 8),
    "IQ2_S": (3, 8),
    "IQ1": (3, 8),
    "IQ3_XXS": (8, 4),
    "IQ3_S": (8, 4),
}

# What digits stand for. A value is one of these, with a sign that is stored apart.
IQ2_VALUES = np.array([8, 25, 43], np.float32)
IQ3_XXS_VALUES = np.array([4, 12, 20, 28, 36, 44, 52, 62], np.float32)
IQ3_S_VALUES = np.array([1, 3, 5, 7, 9, 11, 13, 15], np.float32)
IQ1_VALUES = np.array([-1, 0, 1], np.float32)
_IQ1_DELTA = np.float32(0.125)


@cache
def grid(name: str) -> Bytes:
    """Return the points of a grid by their indices, uint8 [points, digits], read-only."""
    bits = np.unpackbits(np.frombuffer(_FILE.read_bytes(), np.uint8), bitorder="little")
    start = 0
    for other, (base, digits) in _SIZES.items():
        count = base**digits
        if other == name:
            numbers = np.flatnonzero(bits[start : start + count])
            points = (numbers[:, None] // base ** np.arange(digits) % base).astype(np.uint8)
            points.flags.writeable = False
            return points
        start += -(-count // 8) * 8
    raise KeyError(name)


def _points(indices: Integers, name: str, values: Floats) -> Floats:
    """Return the values of the points with these indices [blocks, n], [blocks, 256]."""
    found: Floats = values[grid(name)][indices]
    return found.reshape(len(indices), 256)


def _signs(bits: Bytes) -> Floats:
    """Return −1 for each set bit, the lowest of a byte first, else 1: [blocks, 8 * bytes]."""
    return 1 - 2 * np.unpackbits(bits, axis=1, bitorder="little").astype(np.float32)


def _signs_of_7_bits(indices: Integers) -> Floats:
    """As `_signs`, of seven bits each; the eighth sign makes an even number of them negative."""
    low = (indices & 127).astype(np.uint8)
    parity = low ^ (low >> np.uint8(4))
    parity ^= parity >> np.uint8(2)
    parity ^= parity >> np.uint8(1)
    return _signs((low | (parity << np.uint8(7))).reshape(len(indices), -1))


def _nibbles(packed: Bytes) -> Bytes:
    """Return the low and the high half of each byte, one beside the other."""
    return np.stack([packed & LOW_4_BITS, packed >> FOUR], 2).reshape(len(packed), -1)


def _quarter_scales(blocks: Bytes, scales: Integers) -> Floats:
    half_steps = scales.astype(np.float32) + np.float32(0.5)
    return float16_at(blocks, 0) * half_steps * np.float32(0.25)


def iq2_xxs(blocks: Bytes) -> ScalesAndValues:
    """half d, of each 32 values: index[4], 7 signs[4] and 4-bit scale: d·(scale + ½)/4·±value."""
    words = view_of(blocks, 2, 66, "<u4").reshape(len(blocks), 8, 2)
    indices = np.ascontiguousarray(words[:, :, 0]).view(np.uint8).astype(np.uint16)
    signs = _signs_of_7_bits(words[:, :, 1, None] >> np.array([0, 7, 14, 21], np.uint32))
    values = _points(indices.reshape(len(blocks), 32), "IQ2_XXS", IQ2_VALUES) * signs
    return _quarter_scales(blocks, words[:, :, 1] >> 28), values


def iq2_xs(blocks: Bytes) -> ScalesAndValues:
    """half d, 9-bit index and 7 signs[32], 4-bit scale[16]: d·(scale + ½)/4·±value."""
    words = view_of(blocks, 2, 66, "<u2")
    signs = _signs_of_7_bits((words >> 9).astype(np.uint32))
    values = _points(words & np.uint16(511), "IQ2_XS", IQ2_VALUES) * signs
    return _quarter_scales(blocks, _nibbles(blocks[:, 66:74])), values


def iq2_s(blocks: Bytes) -> ScalesAndValues:
    """half d, low index byte[32], 8 signs[32], 2 high index bits[32], 4-bit scale[16].

    d·(scale + ½)/4·±value.
    """
    high = (blocks[:, 66:74, None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)
    indices = blocks[:, 2:34] | (high.reshape(-1, 32).astype(np.uint16) << 8)
    values = _points(indices, "IQ2_S", IQ2_VALUES) * _signs(blocks[:, 34:66])
    return _quarter_scales(blocks, _nibbles(blocks[:, 74:82])), values


def iq3_xxs(blocks: Bytes) -> ScalesAndValues:
    """half d, index[64], of each 32 values: 7 signs[4], 4-bit scale: d·(scale + ½)/2·±value."""
    words = view_of(blocks, 66, 98, "<u4")
    signs = _signs_of_7_bits(words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32))
    values = _points(blocks[:, 2:66].astype(np.uint16), "IQ3_XXS", IQ3_XXS_VALUES) * signs
    return 2 * _quarter_scales(blocks, words >> 28), values


def iq3_s(blocks: Bytes) -> ScalesAndValues:
    """half d, low index byte[64], ninth index bit[64], 8 signs[32], 4-bit scale[8].

    d·(2·scale + 1)·±value.
    """
    ninth = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little").astype(np.uint16) << 8
    values = _points(blocks[:, 2:66] | ninth, "IQ3_S", IQ3_S_VALUES) * _signs(blocks[:, 74:106])
    scales = 2 * _nibbles(blocks[:, 106:110]).astype(np.float32) + 1
    return float16_at(blocks, 0) * scales, values


def _with_delta(indices: Integers, is_negative: Bytes) -> Floats:
    """Return value ± ⅛; the signs [blocks, n] belong to equal runs of values."""
    values = _points(indices, "IQ1", IQ1_VALUES).reshape(*is_negative.shape, -1)
    deltas = np.where(is_negative, -_IQ1_DELTA, _IQ1_DELTA)
    moved: Floats = values + deltas[:, :, None]
    return moved.reshape(len(values), 256)


def iq1_s(blocks: Bytes) -> ScalesAndValues:
    """half d, low index byte[32], of each 32 values: 3 high index bits[4], 3-bit scale, sign.

    d·(2·scale + 1)·(value ± ⅛).
    """
    words = view_of(blocks, 34, 50, "<u2")
    high = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
    scales = 2 * ((words >> 12) & 7).astype(np.float32) + 1
    indices = blocks[:, 2:34] | (high.reshape(-1, 32) << 8)
    values = _with_delta(indices, (words >> 15).astype(np.uint8))
    return float16_at(blocks, 0) * scales, values


def iq1_m_scale(blocks: Bytes) -> Floats:
    """Return d of IQ1_M, the high four bits of four words, as float32 [blocks, 1]."""
    high = view_of(blocks, 48, 56, "<u2") >> 12
    d = (high << np.array([0, 4, 8, 12], np.uint16)).sum(axis=1, dtype=np.uint16)
    found: Floats = d.view(np.float16).astype(np.float32)[:, None]
    return found


def iq1_m(blocks: Bytes) -> ScalesAndValues:
    """Low index byte[32], 3 high index bits and sign[32], of each 64 values: 3-bit scale[4], ¼ d.

    d·(2·scale + 1)·(value ± ⅛).
    """
    high = _nibbles(blocks[:, 32:48])
    indices = blocks[:, :32] | ((high & np.uint8(7)).astype(np.uint16) << 8)
    words = view_of(blocks, 48, 56, "<u2")
    three_bits = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
    scales = 2 * three_bits.reshape(-1, 16).astype(np.float32) + 1
    return iq1_m_scale(blocks) * scales, _with_delta(indices, high >> np.uint8(3))
