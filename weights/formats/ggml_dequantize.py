"""Dequantization of ggml blocks (the quantized types of GGUF) to float32.

The layouts are those of the block structures in ggml (`ggml-common.h`): a row is a sequence of
blocks, a block has one or two half-precision scales and packed small integers. The function of a
type takes blocks as uint8 [blocks, block bytes] and returns float32 [blocks, elements]. Their
docstrings give the fields of a block in order and the value of an element.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from swiftchat.weights.formats import ggml_grids as grids
from swiftchat.weights.formats.arrays import Bytes, Floats
from swiftchat.weights.formats.ggml_unpack import (
    FOUR,
    LOW_4_BITS,
    THREE,
    TWO,
    fifth_bits,
    float16_at,
    scaled,
    unpack_2bit,
    unpack_bits,
    unpack_nibbles,
    unpack_scales_and_minima,
    view_of,
)

# `kvalues_iq4nl` and `kvalues_mxfp4` of ggml.
IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
DOUBLE_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


@dataclass(frozen=True)
class BlockType:
    """A type: `block_elements` elements in `block_bytes` bytes, dequantized by `to_float32`.

    `scales` returns the float scales of blocks, one beside the other; None: they are always finite.
    """

    block_elements: int
    block_bytes: int
    to_float32: Callable[[Bytes], Floats]
    scales: Callable[[Bytes], Floats] | None = None


def dequantize(data: Bytes, type_name: str) -> Floats:
    """Dequantize whole blocks, uint8 [rows, bytes of a row], to float32 [rows, elements]."""
    kind = BLOCK_TYPES[type_name]
    blocks = data.reshape(-1, kind.block_bytes)
    # The scale in a damaged file may be infinite or NaN; the caller checks the result.
    with np.errstate(invalid="ignore", over="ignore"):
        return kind.to_float32(blocks).reshape(data.shape[0], -1)


def _f32(blocks: Bytes) -> Floats:
    return view_of(blocks, 0, 4, "<f4")


def _f16(blocks: Bytes) -> Floats:
    return float16_at(blocks, 0)


def _bf16(blocks: Bytes) -> Floats:
    return (view_of(blocks, 0, 2, "<u2").astype(np.uint32) << 16).view(np.float32)


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


def _q2_k(blocks: Bytes) -> Floats:
    """4+4-bit scale and minimum[16], 2-bit q[256], half d, half dmin: d·scale·q − dmin·min."""
    packed = blocks[:, :16]
    scales = float16_at(blocks, 80) * (packed & LOW_4_BITS).astype(np.float32)
    minima = float16_at(blocks, 82) * (packed >> FOUR).astype(np.float32)
    values = scaled(unpack_2bit(blocks[:, 16:80]), scales)
    values -= minima[:, :, None]
    return values.reshape(len(blocks), 256)


def _q3_k(blocks: Bytes) -> Floats:
    """High bit[256], 2-bit q[256], 6-bit scale[16], half d: d·(scale − 32)·(q − 4)."""
    low = unpack_nibbles(blocks[:, 96:104], 8)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)
    high = ((blocks[:, 104:108].reshape(-1, 1, 4) >> shifts) & THREE).reshape(-1, 16)
    six_bits = (low | (high << FOUR)).astype(np.int8) - np.int8(32)
    scales = float16_at(blocks, 108) * six_bits.astype(np.float32)
    values = (unpack_2bit(blocks[:, 32:96]) | (unpack_bits(blocks[:, :32]) << TWO)).view(np.int8)
    return scaled(values - np.int8(4), scales).reshape(len(blocks), 256)


def _k_with_minima(blocks: Bytes, values: Bytes) -> Floats:
    scales, minima = unpack_scales_and_minima(blocks[:, 4:16])
    result = scaled(values, float16_at(blocks, 0) * scales.astype(np.float32))
    result -= (float16_at(blocks, 2) * minima.astype(np.float32))[:, :, None]
    return result.reshape(len(blocks), 256)


def _q4_k(blocks: Bytes) -> Floats:
    """half d, half dmin, 6-bit scale and minimum[8], 4-bit q[256]: d·scale·q − dmin·min."""
    return _k_with_minima(blocks, unpack_nibbles(blocks[:, 16:], 32))


def _q5_k(blocks: Bytes) -> Floats:
    """As Q4_K, with fifth bits[256] before the 4-bit q."""
    fifth = unpack_bits(blocks[:, 16:48]) << FOUR
    return _k_with_minima(blocks, unpack_nibbles(blocks[:, 48:], 32) | fifth)


def _q6_k(blocks: Bytes) -> Floats:
    """4-bit q[256], upper 2 bits[256], int8 scale[16], half d: d·scale·(q − 32)."""
    values = unpack_nibbles(blocks[:, :128], 64) | (unpack_2bit(blocks[:, 128:192]) << FOUR)
    scales = float16_at(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return scaled(values.view(np.int8) - np.int8(32), scales).reshape(len(blocks), 256)


def _q8_k(blocks: Bytes) -> Floats:
    """float d, int8 q[256], sums of q for dot products (unused): d·q."""
    values = blocks[:, 4:260].view(np.int8).astype(np.float32)
    values *= view_of(blocks, 0, 4, "<f4")
    return values


def _iq4_nl(blocks: Bytes) -> Floats:
    """half d, 4-bit q[32]: d·table[q]."""
    return float16_at(blocks, 0) * IQ4_VALUES[unpack_nibbles(blocks[:, 2:], 16)]


def iq4_xs_scales(blocks: Bytes) -> Floats:
    """Return the eight scales of blocks of IQ4_XS."""
    upper = view_of(blocks, 2, 4, "<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    lower = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8)) & LOW_4_BITS
    six_bits = lower.reshape(-1, 8) | ((upper.astype(np.uint8) & THREE) << FOUR)
    return float16_at(blocks, 0) * (six_bits.view(np.int8) - np.int8(32)).astype(np.float32)


def _iq4_xs(blocks: Bytes) -> Floats:
    """half d, upper 2 bits and lower 4 of scale[8], 4-bit q[256]: d·(scale − 32)·table[q]."""
    values = IQ4_VALUES[unpack_nibbles(blocks[:, 8:], 16)]
    return scaled(values, iq4_xs_scales(blocks)).reshape(len(blocks), 256)


def _mxfp4(blocks: Bytes) -> Floats:
    """Exponent e, 4-bit q[32]: 2^(e − 128)·table[q], where the table is twice the e2m1 values."""
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return scales * DOUBLE_E2M1[unpack_nibbles(blocks[:, 1:], 16)]


def _mxfp4_limits(blocks: Bytes) -> Floats:
    """Return twelve times the scales, their largest elements; infinite if float32 has none."""
    return np.ldexp(np.float32(12), blocks[:, :1].astype(np.int32) - 128)


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


def _nvfp4(blocks: Bytes) -> Floats:
    """e4m3 scale[4] without sign, 4-bit q[64]: half the scale times table[q]; 0x7f is zero, too."""
    exponents, fractions = (blocks[:, :4] >> THREE) & LOW_4_BITS, blocks[:, :4] & np.uint8(7)
    numbers = np.where(exponents == 0, fractions, fractions + np.uint8(8)).astype(np.float32)
    scales = np.ldexp(numbers, np.maximum(exponents, 1).astype(np.int32) - 11)
    scales[blocks[:, :4] == 0x7F] = 0
    values = DOUBLE_E2M1[unpack_nibbles(blocks[:, 4:], 8)]
    return scaled(values, scales).reshape(len(blocks), 64)


def _q1_0(blocks: Bytes) -> Floats:
    """half d, bit[128]: d for 1, −d for 0."""
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32)
    return float16_at(blocks, 0) * (2 * bits - 1)


def _products(parts: Callable[[Bytes], tuple[Floats, Floats]]) -> Callable[[Bytes], Floats]:
    """Return the function that multiplies scales by values, those of `parts`."""

    def to_float32(blocks: Bytes) -> Floats:
        scales, values = parts(blocks)
        return scaled(values, scales).reshape(len(blocks), 256)

    return to_float32


def _halves_at(*offsets: int) -> Callable[[Bytes], Floats]:
    return lambda blocks: np.concatenate([float16_at(blocks, at) for at in offsets], axis=1)


def has_finite_scales(rows: Bytes, type_name: str) -> bool:
    """Return whether all scales, and so all weights, of `rows` [rows, row bytes] are finite."""
    kind = BLOCK_TYPES[type_name]
    if kind.scales is None:
        return True
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.isfinite(kind.scales(rows.reshape(-1, kind.block_bytes))).all())


BLOCK_TYPES: Mapping[str, BlockType] = MappingProxyType(
    {
        "F32": BlockType(1, 4, _f32, _f32),
        "F16": BlockType(1, 2, _f16, _f16),
        "BF16": BlockType(1, 2, _bf16, _bf16),
        "Q8_0": BlockType(32, 34, _q8_0, _halves_at(0)),
        "Q4_0": BlockType(32, 18, _q4_0, _halves_at(0)),
        "Q4_1": BlockType(32, 20, _q4_1, _halves_at(0, 2)),
        "Q5_0": BlockType(32, 22, _q5_0, _halves_at(0)),
        "Q5_1": BlockType(32, 24, _q5_1, _halves_at(0, 2)),
        "Q1_0": BlockType(128, 18, _q1_0, _halves_at(0)),
        "Q2_K": BlockType(256, 84, _q2_k, _halves_at(80, 82)),
        "Q3_K": BlockType(256, 110, _q3_k, _halves_at(108)),
        "Q4_K": BlockType(256, 144, _q4_k, _halves_at(0, 2)),
        "Q5_K": BlockType(256, 176, _q5_k, _halves_at(0, 2)),
        "Q6_K": BlockType(256, 210, _q6_k, _halves_at(208)),
        "Q8_K": BlockType(256, 292, _q8_k, _q8_k),
        "IQ1_S": BlockType(256, 50, _products(grids.iq1_s), _halves_at(0)),
        "IQ1_M": BlockType(256, 56, _products(grids.iq1_m), grids.iq1_m_scale),
        "IQ2_XXS": BlockType(256, 66, _products(grids.iq2_xxs), _halves_at(0)),
        "IQ2_XS": BlockType(256, 74, _products(grids.iq2_xs), _halves_at(0)),
        "IQ2_S": BlockType(256, 82, _products(grids.iq2_s), _halves_at(0)),
        "IQ3_XXS": BlockType(256, 98, _products(grids.iq3_xxs), _halves_at(0)),
        "IQ3_S": BlockType(256, 110, _products(grids.iq3_s), _halves_at(0)),
        "IQ4_NL": BlockType(32, 18, _iq4_nl, _halves_at(0)),
        "IQ4_XS": BlockType(256, 136, _iq4_xs, _halves_at(0)),
        "TQ1_0": BlockType(256, 54, _tq1_0, _halves_at(52)),
        "TQ2_0": BlockType(256, 66, _tq2_0, _halves_at(64)),
        "MXFP4": BlockType(32, 17, _mxfp4, _mxfp4_limits),
        "NVFP4": BlockType(64, 36, _nvfp4),
    }
)
