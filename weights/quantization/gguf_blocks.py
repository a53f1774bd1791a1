"""GGUF blocks as quantized matrices: as they are, or in a scheme if one has their groups.

In a scheme integers are taken over unchanged, and the numbers of a table or a grid become integers
of 8 bits; the scale of a group is the product of the block's scales, in float32. Only Q6_K is
requantized: it has a scale per 16 columns, which no scheme has.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats import ggml_grids as grids
from swiftchat.weights.formats.arrays import Bytes, Floats
from swiftchat.weights.formats.ggml_dequantize import (
    BLOCK_TYPES,
    IQ4_VALUES,
    dequantize,
    has_finite_scales,
    iq4_xs_scales,
)
from swiftchat.weights.formats.ggml_unpack import (
    fifth_bits,
    float16_at,
    unpack_bits,
    unpack_nibbles,
    unpack_scales_and_minima,
)
from swiftchat.weights.quantization.mxfp4 import of_ggml_blocks
from swiftchat.weights.quantization.scheme import (
    GgufBlocks,
    Int4,
    Int8Groups,
    Mxfp4,
    PackedSource,
    QuantizedMatrix,
    Scheme,
    Spans,
    slice_matrix,
)
from swiftchat.weights.quantization.settings import Settings
from swiftchat.weights.quantization.stored_tensor import CheckedTensors, StoredTensor

GROUP_SIZE = 32  # of the matrices of all types

# Quantized values, and scale and minimum of each group: weight = scale·value + minimum.
Parts = tuple[npt.NDArray[np.uint8] | npt.NDArray[np.int8], Floats, Floats]

_BLOCKS_AT_ONCE = 1 << 16


def _q4_0(blocks: Bytes) -> Parts:
    scale = float16_at(blocks, 0)
    return unpack_nibbles(blocks[:, 2:], 16), scale, -8 * scale


def _q4_1(blocks: Bytes) -> Parts:
    return unpack_nibbles(blocks[:, 4:], 16), float16_at(blocks, 0), float16_at(blocks, 2)


def _scales_k(blocks: Bytes) -> tuple[Floats, Floats]:
    """Return scales and minima of the eight groups of Q4_K or Q5_K blocks."""
    scales, minima = unpack_scales_and_minima(blocks[:, 4:16])
    return (
        float16_at(blocks, 0) * scales.astype(np.float32),
        -float16_at(blocks, 2) * minima.astype(np.float32),
    )


def _q4_k(blocks: Bytes) -> Parts:
    return unpack_nibbles(blocks[:, 16:], 32), *_scales_k(blocks)


def _q5_0(blocks: Bytes) -> Parts:
    scale = float16_at(blocks, 0)
    return unpack_nibbles(blocks[:, 6:], 16) | fifth_bits(blocks, 2), scale, -16 * scale


def _q5_1(blocks: Bytes) -> Parts:
    return (
        unpack_nibbles(blocks[:, 8:], 16) | fifth_bits(blocks, 4),
        float16_at(blocks, 0),
        float16_at(blocks, 2),
    )


def _q5_k(blocks: Bytes) -> Parts:
    fifth = unpack_bits(blocks[:, 16:48]) << np.uint8(4)
    return unpack_nibbles(blocks[:, 48:], 32) | fifth, *_scales_k(blocks)


def _q8_0(blocks: Bytes) -> Parts:
    scale = float16_at(blocks, 0)
    return blocks[:, 2:].view(np.int8), scale, np.zeros_like(scale)


def _iq4_nl(blocks: Bytes) -> Parts:
    scale = float16_at(blocks, 0)
    values = IQ4_VALUES.astype(np.int8)[unpack_nibbles(blocks[:, 2:], 16)]
    return values, scale, np.zeros_like(scale)


def _iq4_xs(blocks: Bytes) -> Parts:
    values = IQ4_VALUES.astype(np.int8)[unpack_nibbles(blocks[:, 8:], 16)]
    scale = iq4_xs_scales(blocks)
    return values, scale, np.zeros_like(scale)


def _of_grid(parts: Callable[[Bytes], tuple[Floats, Floats]]) -> Callable[[Bytes], Parts]:
    """Return the function for a grid's values, which are integers, with a scale per 32 columns."""

    def unpack(blocks: Bytes) -> Parts:
        scale, values = parts(blocks)
        return values.astype(np.int8), scale, np.zeros_like(scale)

    return unpack


def _iq1_s(blocks: Bytes) -> Parts:
    """Digits 0 to 2; the rest of a value, −1 ± ⅛, makes the minimum of its group."""
    scale, values = grids.iq1_s(blocks)
    first = values.reshape(*scale.shape, 32)[:, :, 0]
    rest = first - np.rint(first) - 1
    digits = values.reshape(*scale.shape, 32) - rest[:, :, None]
    return digits.reshape(len(blocks), 256).astype(np.uint8), scale, scale * rest


def _ternary(type_name: str, scale_at: int) -> Callable[[Bytes], Parts]:
    """Return the function for values −1, 0 and 1 with one scale a block."""

    def unpack(blocks: Bytes) -> Parts:
        d = float16_at(blocks, scale_at)
        units = dequantize(_with_unit_scale(blocks, scale_at), type_name)
        scale = np.repeat(d, units.shape[1] // GROUP_SIZE, 1)
        return (units + 1).astype(np.uint8), scale, -scale

    return unpack


def _with_unit_scale(blocks: Bytes, scale_at: int) -> Bytes:
    """Return a copy of blocks whose float16 at this byte is 1."""
    copy = blocks.copy()
    copy[:, scale_at : scale_at + 2] = np.array([1], np.float16).view(np.uint8)
    return copy


def _q6_k(blocks: Bytes) -> Parts:
    """Requantize to int8 in groups of 32, to the nearest."""
    groups = dequantize(blocks, "Q6_K").reshape(len(blocks), 8, 32)
    scale = np.abs(groups).max(2) / np.float32(127)
    values = np.rint(groups / np.where(scale == 0, 1, scale)[..., None])
    return values.reshape(len(blocks), 256).astype(np.int8), scale, np.zeros_like(scale)


@dataclass(frozen=True)
class _Type:
    """A block type: its unpacking function, and the middle of the range of its 8-bit values.

    `center` None: 4-bit values.
    """

    unpack: Callable[[Bytes], Parts]
    center: int | None = None


_TYPES: Mapping[str, _Type] = MappingProxyType(
    {
        "Q4_0": _Type(_q4_0),
        "Q4_1": _Type(_q4_1),
        "Q4_K": _Type(_q4_k),
        "Q5_0": _Type(_q5_0, 16),
        "Q5_1": _Type(_q5_1, 16),
        "Q5_K": _Type(_q5_k, 16),
        "Q6_K": _Type(_q6_k, 0),
        "Q8_0": _Type(_q8_0, 0),
        "IQ4_NL": _Type(_iq4_nl, 0),
        "IQ4_XS": _Type(_iq4_xs, 0),
        "IQ3_XXS": _Type(_of_grid(grids.iq3_xxs), 0),
        "IQ3_S": _Type(_of_grid(grids.iq3_s), 0),
        "IQ2_XXS": _Type(_of_grid(grids.iq2_xxs), 0),
        "IQ1_S": _Type(_iq1_s),
        "TQ1_0": _Type(_ternary("TQ1_0", 52)),
        "TQ2_0": _Type(_ternary("TQ2_0", 64)),
        "Q1_0": _Type(_ternary("Q1_0", 0)),
    }
)
PACKABLE_TYPES = _TYPES.keys() | {"MXFP4"}
KEPT_TYPES = BLOCK_TYPES.keys() - {"F32", "F16", "BF16"}


def matrix_type_of(type_name: str) -> type[Int4] | type[Int8Groups] | type[Mxfp4]:
    """Return the type of quantized matrix that `to_matrix` makes of a block type."""
    if type_name == "MXFP4":
        return Mxfp4
    return Int4 if _TYPES[type_name].center is None else Int8Groups


def to_matrix(rows: Bytes, type_name: str) -> Int4 | Int8Groups | Mxfp4:
    """Convert rows of whole blocks, [rows, row bytes], of one of `PACKABLE_TYPES`.

    Scales that are not finite are passed through.
    """
    if type_name == "MXFP4":
        return of_ggml_blocks(rows)
    kind = _TYPES[type_name]
    blocks = rows.reshape(-1, BLOCK_TYPES[type_name].block_bytes)
    all_values, scales, zero_points = [], [], []
    for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
        with np.errstate(invalid="ignore", over="ignore"):
            values, scale, minimum = kind.unpack(blocks[start : start + _BLOCKS_AT_ONCE])
            scale, zero_point = _zero_point(scale, minimum)
        if kind.center is None:
            pairs = values.view("<u2")  # neighbors, the lower column in the low byte
            all_values.append((pairs | pairs >> np.uint16(4)).astype(np.uint8))
        else:  # modulo 256
            all_values.append(values.view(np.uint8) + np.uint8(128 - kind.center))
            zero_point += 128 - kind.center
        scales.append(scale)
        zero_points.append(zero_point)
    return (Int4 if kind.center is None else Int8Groups)(
        np.concatenate(all_values).reshape(len(rows), -1),
        np.concatenate(scales).reshape(len(rows), -1),
        np.concatenate(zero_points).reshape(len(rows), -1),
    )


def _zero_point(scale: Floats, minimum: Floats) -> tuple[Floats, Floats]:
    """Return scale and zero point for scale·value + minimum.

    With scale 0 every weight of a group equals the minimum. The group then gets a scale so small
    compared with the minimum that its values do not matter.
    """
    flat = (scale == 0) & (minimum != 0)
    scale = np.where(flat, np.abs(minimum) * np.float32(2.0**-40), scale)
    divisor: Floats = np.where(scale == 0, np.float32(-1), -scale).astype(np.float32)
    return scale, minimum / divisor


def tensors(settings: Settings, source: CheckedTensors) -> dict[str, StoredTensor]:
    """Return every `….TYPE` that is a matrix of such blocks, named without the type."""
    settings.reject_unknown({"quant_method"})
    return {
        name: block_tensor(source, name, type_name)
        for type_name in sorted(KEPT_TYPES)
        for name in source.stems(f".{type_name}")
    }


def block_tensor(source: CheckedTensors, name: str, type_name: str) -> StoredTensor:
    """Return the matrix `name`, stored as `name.TYPE`, uint8 [rows, row bytes]."""
    stored, kind = f"{name}.{type_name}", BLOCK_TYPES[type_name]
    count, row_bytes = source.shape(stored, ("U8",), 2)
    if row_bytes % kind.block_bytes:
        raise source.error(stored, f"rows of blocks of {kind.block_bytes} bytes", f"{row_bytes}")
    columns = row_bytes // kind.block_bytes * kind.block_elements

    def dequantize_rows(start: int, stop: int) -> Floats:
        weights = dequantize(source.read(stored)[start:stop], type_name)
        if not np.isfinite(weights).all():
            raise source.error(stored, "finite scales", "NaN or infinity")
        return weights

    def read_packed() -> Int4 | Int8Groups | Mxfp4:
        blocks = source.read(stored)
        if not has_finite_scales(blocks, type_name):
            raise source.error(stored, "finite scales", "NaN or infinity")
        return to_matrix(blocks, type_name)

    def read_blocks() -> GgufBlocks:
        return GgufBlocks(type_name, source.read(stored), [(0, columns)], stored)

    packed = None
    if type_name in PACKABLE_TYPES:
        packed = PackedSource(Scheme(matrix_type_of(type_name), GROUP_SIZE), read_packed)
    return StoredTensor(
        type_name,
        (count, columns),
        {"blocks": stored},
        dequantize_rows,
        packed,
        read_blocks=read_blocks,
    )


def with_columns(tensor: StoredTensor, spans: Spans) -> StoredTensor:
    """Return a matrix of `block_tensor` with its columns in another order.

    It has those in `spans`, (start, stop) each, beside one another. Borders are multiples of 32.
    """
    dequantize_all, packed, read_blocks = tensor.dequantize, tensor.packed, tensor.read_blocks
    assert read_blocks is not None

    def dequantize_rows(start: int, stop: int) -> Floats:
        rows = dequantize_all(start, stop)
        return np.concatenate([rows[:, first:end] for first, end in spans], axis=1)

    def blocks() -> GgufBlocks:
        return replace(read_blocks(), spans=spans)

    def matrix() -> QuantizedMatrix:
        assert packed is not None
        found = slice_matrix(packed.read(), 1, spans)
        assert found is not None
        return found

    return replace(
        tensor,
        dequantize=dequantize_rows,
        packed=None if packed is None else PackedSource(packed.scheme, matrix),
        read_blocks=blocks,
    )
