"""Bits, bytes and scales out of ggml blocks, uint8 [blocks, block bytes]."""

from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.arrays import Bytes, Floats

# Masks and shifts as uint8, so that packed bytes stay bytes.
ONE, TWO, THREE, FOUR, SIX = (np.uint8(value) for value in (1, 2, 3, 4, 6))
LOW_4_BITS, LOW_6_BITS = np.uint8(15), np.uint8(63)


def view_of(blocks: Bytes, start: int, stop: int, dtype: str) -> npt.NDArray[Any]:
    return np.ascontiguousarray(blocks[:, start:stop]).view(dtype)


def float16_at(blocks: Bytes, start: int) -> Floats:
    """Return the float16 at byte `start` of each block as float32 [blocks, 1]."""
    return view_of(blocks, start, start + 2, "<f2").astype(np.float32)


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
    return ((runs >> shifts) & THREE).reshape(len(packed), -1)


def unpack_bits(packed: Bytes) -> Bytes:
    """Unpack the bits of 32 bytes, all lowest bits first, to [blocks, 256]."""
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    return ((packed.reshape(len(packed), 1, 32) >> shifts) & ONE).reshape(len(packed), -1)


def fifth_bits(blocks: Bytes, start: int) -> Bytes:
    """Return the 32 bits at byte `start`, lowest first, as the fifth bits of values: 0 or 16."""
    return np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little") << FOUR


def unpack_scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Unpack eight 6-bit scales and eight 6-bit minima from the 12 bytes of Q4_K and Q5_K."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate(
        [first & LOW_6_BITS, (third & LOW_4_BITS) | ((first >> SIX) << FOUR)], axis=1
    )
    minima = np.concatenate(
        [second & LOW_6_BITS, (third >> FOUR) | ((second >> SIX) << FOUR)], axis=1
    )
    return scales, minima


def scaled(values: Bytes | npt.NDArray[np.int8] | Floats, scales: Floats) -> Floats:
    """Multiply values [blocks, 256] by scales [blocks, sub-blocks].

    Returns [blocks, sub-blocks, size of a sub-block].
    """
    blocks, sub_blocks = scales.shape
    result = values.reshape(blocks, sub_blocks, -1).astype(np.float32)
    result *= scales[:, :, None]
    return result
