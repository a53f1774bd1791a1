"""Dequantization of ggml blocks (the quantized types of GGUF) to float32.

The layouts are those of the block structures in ggml (`ggml-common.h`): a row is a sequence of
blocks, a block has one or two half-precision scales and packed small integers. The function of a
type takes blocks as uint8 [blocks, block bytes] and returns float32 [blocks, elements]. Their
docstrings give the fields of a block in order and the value of an element.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.arrays import Bytes, Floats

# Masks and shifts as uint8, so that packed bytes stay bytes.
_ONE, _TWO, _THREE, _FOUR, _SIX = (np.uint8(value) for value in (1, 2, 3, 4, 6))
_LOW_4_BITS, _LOW_6_BITS = np.uint8(15), np.uint8(63)

# `kvalues_iq4nl` and `kvalues_mxfp4` of ggml.
IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
DOUBLE_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


@dataclass(frozen=True)
class BlockType:
    """A type: `block_elements` elements in `block_bytes` bytes, dequantized by `to_float32`."""

    block_elements: int
    block_bytes: int
    to_float32: Callable[[Bytes], Floats]


def dequantize(data: Bytes, type_name: str) -> Floats:
    """Dequantize whole blocks, uint8 [rows, bytes of a row], to float32 [rows, elements]."""
    kind = BLOCK_TYPES[type_name]
    blocks = data.reshape(-1, kind.block_bytes)
    # The scale in a damaged file may be infinite or NaN; the caller checks the result.
    with np.errstate(invalid="ignore", over="ignore"):
        return kind.to_float32(blocks).reshape(data.shape[0], -1)


def _view(blocks: Bytes, start: int, stop: int, dtype: str) -> npt.NDArray[Any]:
    return np.ascontiguousarray(blocks[:, start:stop]).view(dtype)


def float16_at(blocks: Bytes, start: int) -> Floats:
    """Return the float16 at byte `start` of each block as float32 [blocks, 1]."""
    return _view(blocks, start, start + 2, "<f2").astype(np.float32)


def unpack_nibbles(packed: Bytes, run: int) -> Bytes:
    """Unpack 4-bit values: from each `run` bytes all low nibbles, then all high nibbles."""
    # Eight bytes at a time: the mask removes the bits shifted in from the next byte.
    words = np.ascontiguousarray(packed).view(np.uint64).reshape(len(packed), -1, 1, run // 8)
    shifts = np.array([0, 4], np.uint64).reshape(1, 1, 2, 1)
    halves = (words >> shifts) & np.uint64(0x0F0F_0F0F_0F0F_0F0F)
    return halves.reshape(len(packed), -1).view(np.uint8)


def unpack_2bit(packed: Bytes) -> Bytes:
    """Unpack 2-bit values: from each 32 bytes all bits 0–1, then all bits 2–3, and so on."""
    runs = packed.reshape(len(packed), -1, 1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return ((runs >> shifts) & _THREE).reshape(len(packed), -1)


def unpack_bits(packed: Bytes) -> Bytes:
    """Unpack the bits of 32 bytes, all lowest bits first, to [blocks, 256]."""
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    return ((packed.reshape(len(packed), 1, 32) >> shifts) & _ONE).reshape(len(packed), -1)


def _f32(blocks: Bytes) -> Floats:
    return _view(blocks, 0, 4, "<f4")


def _f16(blocks: Bytes) -> Floats:
    return float16_at(blocks, 0)


def _bf16(blocks: Bytes) -> Floats:
    return (_view(blocks, 0, 2, "<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(blocks: Bytes) -> Floats:
    """half d, int8 q[32]: d·q."""
    values = blocks[:, 2:].view(np.int8).astype(np.float32)
    values *= float16_at(blocks, 0)
    return values


def _q4_0(blocks: Bytes) -> Floats:
    """half d, 4-bit q[32]: d·(q − 8)."""
    values = unpack_nibbles(blocks[:, 2:], 16).astype(np.float32)
    values -= 8
    values *= float16_at(blocks, 0)
    return values


def _q4_1(blocks: Bytes) -> Floats:
    """half d, half m, 4-bit q[32]: d·q + m."""
    values = unpack_nibbles(blocks[:, 4:], 16).astype(np.float32)
    values *= float16_at(blocks, 0)
    values += float16_at(blocks, 2)
    return values


def fifth_bits(blocks: Bytes, start: int) -> Bytes:
    """Return the 32 bits at byte `start`, lowest first, as the fifth bits of values: 0 or 16."""
    return np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little") << _FOUR


def _q5_0(blocks: Bytes) -> Floats:
    """half d, fifth bits[32], 4-bit q[32]: d·(q − 16)."""
    values = (unpack_nibbles(blocks[:, 6:], 16) | fifth_bits(blocks, 2)).astype(np.float32)
    values -= 16
    values *= float16_at(blocks, 0)
    return values


def _q5_1(blocks: Bytes) -> Floats:
    """half d, half m, fifth bits[32], 4-bit q[32]: d·q + m."""
    values = (unpack_nibbles(blocks[:, 8:], 16) | fifth_bits(blocks, 4)).astype(np.float32)
    values *= float16_at(blocks, 0)
    values += float16_at(blocks, 2)
    return values


def _scaled(values: Bytes | npt.NDArray[np.int8] | Floats, scales: Floats) -> Floats:
    """Multiply values [blocks, 256] by scales [blocks, sub-blocks].

    Returns [blocks, sub-blocks, size of a sub-block].
    """
    blocks, sub_blocks = scales.shape
    result = values.reshape(blocks, sub_blocks, -1).astype(np.float32)
    result *= scales[:, :, None]
    return result


def _q2_k(blocks: Bytes) -> Floats:
    """4+4-bit scale and minimum[16], 2-bit q[256], half d, half dmin: d·scale·q − dmin·min."""
    packed = blocks[:, :16]
    scales = float16_at(blocks, 80) * (packed & _LOW_4_BITS).astype(np.float32)
    minima = float16_at(blocks, 82) * (packed >> _FOUR).astype(np.float32)
    values = _scaled(unpack_2bit(blocks[:, 16:80]), scales)
    values -= minima[:, :, None]
    return values.reshape(len(blocks), 256)


def _q3_k(blocks: Bytes) -> Floats:
    """High bit[256], 2-bit q[256], 6-bit scale[16], half d: d·(scale − 32)·(q − 4)."""
    low = unpack_nibbles(blocks[:, 96:104], 8)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)
    high = ((blocks[:, 104:108].reshape(-1, 1, 4) >> shifts) & _THREE).reshape(-1, 16)
    six_bits = (low | (high << _FOUR)).astype(np.int8) - np.int8(32)
    scales = float16_at(blocks, 108) * six_bits.astype(np.float32)
    values = (unpack_2bit(blocks[:, 32:96]) | (unpack_bits(blocks[:, :32]) << _TWO)).view(np.int8)
    return _scaled(values - np.int8(4), scales).reshape(len(blocks), 256)


def unpack_scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Unpack eight 6-bit scales and eight 6-bit minima from the 12 bytes of Q4_K and Q5_K."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate(
        [first & _LOW_6_BITS, (third & _LOW_4_BITS) | ((first >> _SIX) << _FOUR)], axis=1
    )
    minima = np.concatenate(
        [second & _LOW_6_BITS, (third >> _FOUR) | ((second >> _SIX) << _FOUR)], axis=1
    )
    return scales, minima


def _k_with_minima(blocks: Bytes, values: Bytes) -> Floats:
    scales, minima = unpack_scales_and_minima(blocks[:, 4:16])
    result = _scaled(values, float16_at(blocks, 0) * scales.astype(np.float32))
    result -= (float16_at(blocks, 2) * minima.astype(np.float32))[:, :, None]
    return result.reshape(len(blocks), 256)


def _q4_k(blocks: Bytes) -> Floats:
    """half d, half dmin, 6-bit scale and minimum[8], 4-bit q[256]: d·scale·q − dmin·min."""
    return _k_with_minima(blocks, unpack_nibbles(blocks[:, 16:], 32))


def _q5_k(blocks: Bytes) -> Floats:
    """As Q4_K, with fifth bits[256] before the 4-bit q."""
    fifth = unpack_bits(blocks[:, 16:48]) << _FOUR
    return _k_with_minima(blocks, unpack_nibbles(blocks[:, 48:], 32) | fifth)


def _q6_k(blocks: Bytes) -> Floats:
    """4-bit q[256], upper 2 bits[256], int8 scale[16], half d: d·scale·(q − 32)."""
    values = unpack_nibbles(blocks[:, :128], 64) | (unpack_2bit(blocks[:, 128:192]) << _FOUR)
    scales = float16_at(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _scaled(values.view(np.int8) - np.int8(32), scales).reshape(len(blocks), 256)


def _q8_k(blocks: Bytes) -> Floats:
    """float d, int8 q[256], sums of q for dot products (unused): d·q."""
    values = blocks[:, 4:260].view(np.int8).astype(np.float32)
    values *= _view(blocks, 0, 4, "<f4")
    return values


def _iq4_nl(blocks: Bytes) -> Floats:
    """half d, 4-bit q[32]: d·table[q]."""
    return float16_at(blocks, 0) * IQ4_VALUES[unpack_nibbles(blocks[:, 2:], 16)]


def _iq4_xs(blocks: Bytes) -> Floats:
    """half d, upper 2 bits and lower 4 of scale[8], 4-bit q[256]: d·(scale − 32)·table[q]."""
    upper = _view(blocks, 2, 4, "<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    lower = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8)) & _LOW_4_BITS
    six_bits = lower.reshape(-1, 8) | ((upper.astype(np.uint8) & _THREE) << _FOUR)
    scales = float16_at(blocks, 0) * (six_bits.view(np.int8) - np.int8(32)).astype(np.float32)
    return _scaled(IQ4_VALUES[unpack_nibbles(blocks[:, 8:], 16)], scales).reshape(len(blocks), 256)


def _mxfp4(blocks: Bytes) -> Floats:
    """Exponent e, 4-bit q[32]: 2^(e − 128)·table[q], where the table is twice the e2m1 values."""
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return scales * DOUBLE_E2M1[unpack_nibbles(blocks[:, 1:], 16)]


def _ternary_digits(packed: Bytes, run: int, count: int) -> Bytes:
    """Unpack base-3 digits: from each `run` bytes all highest digits, then the next, `count` each.

    A byte b represents the fraction b/256; the integer part of 3·b/256 is its first digit.
    """
    powers = np.array([3**digit for digit in range(count)], np.uint8).reshape(1, 1, count, 1)
    fractions = packed.reshape(len(packed), -1, 1, run) * powers
    return ((fractions.astype(np.uint16) * 3) >> 8).astype(np.uint8).reshape(len(packed), -1)


def _tq1_0(blocks: Bytes) -> Floats:
    """Five digits a byte[48], four digits a byte[4], half d: d·(digit − 1)."""
    digits = [_ternary_digits(blocks[:, :32], 32, 5), _ternary_digits(blocks[:, 32:48], 16, 5)]
    values = np.concatenate([*digits, _ternary_digits(blocks[:, 48:52], 4, 4)], axis=1)
    return float16_at(blocks, 52) * (values.view(np.int8) - np.int8(1)).astype(np.float32)


def _tq2_0(blocks: Bytes) -> Floats:
    """2-bit q[256], half d: d·(q − 1)."""
    values = unpack_2bit(blocks[:, :64]).view(np.int8) - np.int8(1)
    return float16_at(blocks, 64) * values.astype(np.float32)


BLOCK_TYPES: Mapping[str, BlockType] = MappingProxyType(
    {
        "F32": BlockType(1, 4, _f32),
        "F16": BlockType(1, 2, _f16),
        "BF16": BlockType(1, 2, _bf16),
        "Q8_0": BlockType(32, 34, _q8_0),
        "Q4_0": BlockType(32, 18, _q4_0),
        "Q4_1": BlockType(32, 20, _q4_1),
        "Q5_0": BlockType(32, 22, _q5_0),
        "Q5_1": BlockType(32, 24, _q5_1),
        "Q2_K": BlockType(256, 84, _q2_k),
        "Q3_K": BlockType(256, 110, _q3_k),
        "Q4_K": BlockType(256, 144, _q4_k),
        "Q5_K": BlockType(256, 176, _q5_k),
        "Q6_K": BlockType(256, 210, _q6_k),
        "Q8_K": BlockType(256, 292, _q8_k),
        "IQ4_NL": BlockType(32, 18, _iq4_nl),
        "IQ4_XS": BlockType(256, 136, _iq4_xs),
        "TQ1_0": BlockType(256, 54, _tq1_0),
        "TQ2_0": BlockType(256, 66, _tq2_0),
        "MXFP4": BlockType(32, 17, _mxfp4),
    }
)
