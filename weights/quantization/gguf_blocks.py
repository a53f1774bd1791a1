"""GGUF blocks as the forms that an engine keeps packed, for the types that have one.

Whole numbers stay what they are; the factor of a group is the product that the block's own
definition begins with, in float32. Q6_K alone is rounded: it has a factor for each 16 columns,
and none of the forms does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.ggml_dequantize import (
    BLOCK_TYPES,
    IQ4_NUMBERS,
    bit_planes,
    dequantize,
    fifth_bits,
    half,
    nibbles,
    scales_and_minima,
)
from swiftchat.weights.quantization.quantized_tensor import PackedTensor, Source
from swiftchat.weights.quantization.scheme import Int4, Int8Groups, PackedSource
from swiftchat.weights.quantization.settings import Settings

__all__ = ["GROUP", "KEPT_TYPES", "finite", "form_of", "kept", "tensors"]

GROUP = 32  # columns that have a factor and a zero together, of all types

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
# Numbers, and for each group factor and minimum: weight = factor·number + minimum.
Parts = tuple[npt.NDArray[np.uint8] | npt.NDArray[np.int8], Floats, Floats]

_BLOCKS_AT_ONCE = 1 << 16


def _q4_0(blocks: Bytes) -> Parts:
    scale = half(blocks, 0)
    return nibbles(blocks[:, 2:], 16), scale, -8 * scale


def _q4_1(blocks: Bytes) -> Parts:
    return nibbles(blocks[:, 4:], 16), half(blocks, 0), half(blocks, 2)


def _factors_k(blocks: Bytes) -> tuple[Floats, Floats]:
    """Factor and minimum of the eight groups of a Q4_K or Q5_K block."""
    scales, minima = scales_and_minima(blocks[:, 4:16])
    return (
        half(blocks, 0) * scales.astype(np.float32),
        -half(blocks, 2) * minima.astype(np.float32),
    )


def _q4_k(blocks: Bytes) -> Parts:
    return nibbles(blocks[:, 16:], 32), *_factors_k(blocks)


def _q5_0(blocks: Bytes) -> Parts:
    scale = half(blocks, 0)
    return nibbles(blocks[:, 6:], 16) | fifth_bits(blocks, 2), scale, -16 * scale


def _q5_1(blocks: Bytes) -> Parts:
    return nibbles(blocks[:, 8:], 16) | fifth_bits(blocks, 4), half(blocks, 0), half(blocks, 2)


def _q5_k(blocks: Bytes) -> Parts:
    fifth = bit_planes(blocks[:, 16:48]) << np.uint8(4)
    return nibbles(blocks[:, 48:], 32) | fifth, *_factors_k(blocks)


def _q8_0(blocks: Bytes) -> Parts:
    scale = half(blocks, 0)
    return blocks[:, 2:].view(np.int8), scale, np.zeros_like(scale)


def _iq4_nl(blocks: Bytes) -> Parts:
    scale = half(blocks, 0)
    numbers = IQ4_NUMBERS.astype(np.int8)[nibbles(blocks[:, 2:], 16)]
    return numbers, scale, np.zeros_like(scale)


def _q6_k(blocks: Bytes) -> Parts:
    """To the nearest of 255 numbers for each 32 columns."""
    groups = dequantize(blocks, "Q6_K").reshape(len(blocks), 8, 32)
    scale = np.abs(groups).max(2) / np.float32(127)
    numbers = np.rint(groups / np.where(scale == 0, 1, scale)[..., None])
    return numbers.reshape(len(blocks), 256).astype(np.int8), scale, np.zeros_like(scale)


@dataclass(frozen=True)
class _Type:
    """How blocks of a type are taken apart, and at which bytes their half-precision factors are.

    `middle` is the number in the middle of those that a group may have; None: they have 4 bits.
    """

    parts: Callable[[Bytes], Parts]
    factors: tuple[int, ...]
    middle: int | None = None


_TYPES: Mapping[str, _Type] = MappingProxyType(
    {
        "Q4_0": _Type(_q4_0, (0,)),
        "Q4_1": _Type(_q4_1, (0, 2)),
        "Q4_K": _Type(_q4_k, (0, 2)),
        "Q5_0": _Type(_q5_0, (0,), 16),
        "Q5_1": _Type(_q5_1, (0, 2), 16),
        "Q5_K": _Type(_q5_k, (0, 2), 16),
        "Q6_K": _Type(_q6_k, (208,), 0),
        "Q8_0": _Type(_q8_0, (0,), 0),
        "IQ4_NL": _Type(_iq4_nl, (0,), 0),
    }
)
KEPT_TYPES = frozenset(_TYPES)


def finite(rows: Bytes, type_name: str) -> bool:
    """Whether all factors of `rows`, [rows, row bytes], are finite, and so all numbers."""
    blocks = rows.reshape(-1, BLOCK_TYPES[type_name].block_bytes)
    return all(np.isfinite(half(blocks, at)).all() for at in _TYPES[type_name].factors)


def form_of(type_name: str) -> type[Int4] | type[Int8Groups]:
    """Which form blocks of a `KEPT_TYPES` type are kept in."""
    return Int4 if _TYPES[type_name].middle is None else Int8Groups


def kept(rows: Bytes, type_name: str) -> Int4 | Int8Groups:
    """The matrix whose rows of whole blocks are `rows`, [rows, row bytes], of a `KEPT_TYPES` type.

    Factors that are not finite are passed on.
    """
    kind = _TYPES[type_name]
    blocks = rows.reshape(-1, BLOCK_TYPES[type_name].block_bytes)
    codes, scales, zeros = [], [], []
    for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
        with np.errstate(invalid="ignore", over="ignore"):
            numbers, scale, minimum = kind.parts(blocks[start : start + _BLOCKS_AT_ONCE])
            scale, zero = _zero(scale, minimum)
        if kind.middle is None:
            two = numbers.view("<u2")  # neighbors, the lower column in the low byte
            codes.append((two | two >> np.uint16(4)).astype(np.uint8))
        else:  # modulo 256
            codes.append(numbers.view(np.uint8) + np.uint8(128 - kind.middle))
            zero += 128 - kind.middle
        scales.append(scale)
        zeros.append(zero)
    return form_of(type_name)(
        np.concatenate(codes).reshape(len(rows), -1),
        np.concatenate(scales).reshape(len(rows), -1),
        np.concatenate(zeros).reshape(len(rows), -1),
    )


def _zero(scale: Floats, minimum: Floats) -> tuple[Floats, Floats]:
    """Factor and zero for scale·number + minimum.

    Without a factor all numbers of a group mean the minimum, which then becomes the factor of
    so small a part of it that the numbers do not count.
    """
    flat = (scale == 0) & (minimum != 0)
    scale = np.where(flat, np.abs(minimum) * np.float32(2.0**-40), scale)
    divisor: Floats = np.where(scale == 0, np.float32(-1), -scale).astype(np.float32)
    return scale, minimum / divisor


def tensors(settings: Settings, source: Source) -> dict[str, PackedTensor]:
    """Every `….TYPE` that is a matrix of such blocks, by its name without the type."""
    settings.refuse_others({"quant_method"})
    return {
        name: _tensor(source, name, type_name)
        for type_name in sorted(KEPT_TYPES)
        for name in source.ending(f".{type_name}")
    }


def _tensor(source: Source, name: str, type_name: str) -> PackedTensor:
    stored, kind = f"{name}.{type_name}", BLOCK_TYPES[type_name]
    count, row_bytes = source.shape(stored, ("U8",), 2)
    if row_bytes % kind.block_bytes:
        raise source.bad(stored, f"rows of blocks of {kind.block_bytes} bytes", f"{row_bytes}")
    columns = row_bytes // kind.block_bytes * kind.block_elements

    def rows(start: int, stop: int) -> Floats:
        numbers = dequantize(source.read(stored)[start:stop], type_name)
        if not np.isfinite(numbers).all():
            raise source.bad(stored, "finite factors", "others")
        return numbers

    def whole() -> Int4 | Int8Groups:
        blocks = source.read(stored)
        if not finite(blocks, type_name):
            raise source.bad(stored, "finite factors", "others")
        return kept(blocks, type_name)

    keeping = PackedSource(form_of(type_name), whole, GROUP)
    return PackedTensor(type_name, (count, columns), {"blocks": stored}, rows, keeping)
