"""FP8 checkpoints: 8-bit floats with a scale per tensor, row or block.

Layout (transformers' `FineGrainedFP8Config`, DeepSeek-V3's published weights, AutoFP8, FBGEMM):
`weight` F8_E4M3 [rows, columns] and `weight_scale`, `weight_scale_inv` or `scale`, which all mean
the scale: one in all, one per row, or one per block of `weight_block_size`. Scales may be powers of
two in 8 bits (F8_E8M0).
weight[r, c] = e4m3(byte[r, c])·scale[r // height, c // width].
"""

from math import gcd

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.arrays import Bytes, Floats
from swiftchat.weights.quantization.scheme import Float8, Int8, PackedSource, Scheme
from swiftchat.weights.quantization.settings import Settings
from swiftchat.weights.quantization.stored_tensor import (
    FLOATS,
    CheckedTensors,
    StoredTensor,
    expand_groups,
)

Block = tuple[int, int]

_MAX_BLOCK = 2**20
_GROUP_UNIT = 32  # no back end reads other groups of floats: larger tables, and none is published
_SCALES = ("weight_scale_inv", "weight_scale", "scale")
_SCALE_DTYPES = (*FLOATS, "F8_E8M0")
# Settings of activations and of the run: no effect on the weights.
_IGNORED = {
    "quant_method",
    "activation_scheme",
    "activation_scale_ub",
    "modules_to_not_convert",
    "modules_to_convert",
    "ignored_layers",
    "kv_cache_scheme",
    "dequantize",
    "is_checkpoint_fp8_serialized",
}
_READ = {"weight_block_size", "fmt", "scale_fmt", "expert_dtype"}


def _e4m3() -> Floats:
    """Return the value of each byte: sign, 4 exponent and 3 fraction bits; two NaNs only."""
    byte = np.arange(256)
    exponent, fraction = (byte >> 3) & 15, byte & 7
    size = np.where(
        exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7)
    )
    size[[0x7F, 0xFF]] = np.nan
    return np.where(byte < 128, size, -size).astype(np.float32)


def _e5m2() -> Floats:
    """Return the value of each byte, which is the upper byte of a float16."""
    return (np.arange(256, dtype=np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)


# Values by byte, from "FP8 Formats for Deep Learning" (Micikevicius et al., 2022).
FLOAT8 = {"F8_E4M3": _e4m3(), "F8_E5M2": _e5m2()}
LARGEST_E4M3 = 448.0


def tensors(settings: Settings, source: CheckedTensors) -> dict[str, StoredTensor]:
    """Return every 8-bit float matrix `….weight` with its scale."""
    settings.reject_unknown(_IGNORED | _READ)
    settings.text("fmt", ("e4m3",), "e4m3")
    settings.text("scale_fmt", ("float", "ue8m0"), "float")
    settings.text("expert_dtype", ("fp8",), "fp8")
    block = _block(settings)
    found: dict[str, StoredTensor] = {}
    for name, info in source.tensors.items():
        if info.dtype not in FLOAT8:
            continue
        module = name.removesuffix(".weight")
        scales = [f"{module}.{scale}" for scale in _SCALES if f"{module}.{scale}" in source.tensors]
        if module == name or len(scales) != 1:
            raise BadModelFile(
                f"{info.file}: tensor {name}: expected one scale for it, "
                f"{module}.weight_scale or {module}.weight_scale_inv, found {len(scales)}"
            )
        found[name] = scaled_tensor(source, "fp8", name, scales[0], block)
    return found


def _block(settings: Settings) -> Block | None:
    name = "weight_block_size"
    return None if settings.fields.get(name) is None else settings.two_sizes(name, _MAX_BLOCK)


def scaled_tensor(
    source: CheckedTensors,
    format: str,
    name: str,
    scale: str,
    block: Block | None,
    zero_point: str | None = None,
) -> StoredTensor:
    """Return the matrix `name`, 8-bit floats or integers: scale·(stored − zero_point).

    Scales and zero points are one in all, one per row ([rows] or [rows, 1]) or, with another
    shape, one per `block`; the last blocks may be smaller.
    """
    rows, columns = source.shape(name, (*FLOAT8, "I8"), 2)
    shape = source.tensors[scale].shape
    if shape in ((), (1,), (1, 1)):
        block = rows, columns
    elif shape in ((rows,), (rows, 1)):
        block = 1, columns
    elif block is None:
        raise source.error(scale, f"one element or {rows}", f"the shape {list(shape)}")
    else:
        source.require(scale, _SCALE_DTYPES, (-(-rows // block[0]), -(-columns // block[1])))
    source.require(scale, _SCALE_DTYPES, shape)
    parts = {"weight": name, "scale": scale}
    if zero_point is not None:
        parts["zero_point"] = source.require(zero_point, ("I8",), shape)
    height, width = block
    table = -(-rows // height), -(-columns // width)

    def dequantize(start: int, stop: int) -> Floats:
        stored = source.read(name)[start:stop]
        block_of_row = np.arange(start, stop) // height
        value_of_byte = FLOAT8.get(source.tensors[name].dtype)
        result = stored.astype(np.float32) if value_of_byte is None else value_of_byte[stored]
        if zero_point is not None:
            zero_points = source.read(zero_point).astype(np.float32).reshape(table)
            result -= expand_groups(zero_points[block_of_row], width, columns)
        scales = source.read_floats(scale).reshape(table)
        result *= expand_groups(scales[block_of_row], width, columns)
        return result

    # Groups of one size: that of a shorter last block must divide the others.
    group_size = gcd(columns, width) if width < columns else 0

    def read_packed() -> Float8 | Int8:
        blocks = source.read_scales(scale).reshape(table)
        if group_size:
            blocks = np.repeat(blocks, width // group_size, 1)[:, : columns // group_size]
        by_row = np.repeat(blocks, min(height, rows), 0)[:rows]
        values = source.read(name)
        if values.dtype == np.int8:
            return Int8(values, by_row[:, 0])
        if (values & np.uint8(127) == 127).any():
            raise source.error(name, "finite elements", "NaN or infinity")
        return Float8(values, by_row)

    packed = None
    match source.tensors[name].dtype:
        case "F8_E4M3" if group_size % _GROUP_UNIT == 0:
            packed = PackedSource(Scheme(Float8, group_size), read_packed)
        case "I8" if zero_point is None and not group_size:
            packed = PackedSource(Scheme(Int8), read_packed)
    return StoredTensor(format, (rows, columns), parts, dequantize, packed)


def nearest_e4m3(x: Floats) -> Bytes:
    """Round to e4m3 bytes, to nearest, ties to even, saturating at ±448.

    Values from 2^e to 2^(e + 1) are multiples of 2^(e − 3), and those below 2^−6 of 2^−9: a
    normal value is 8 to 15 of these units, a subnormal one fewer.
    """
    size = np.minimum(np.abs(x), np.float32(LARGEST_E4M3))
    exponent = np.maximum(np.frexp(size)[1] - 1, -6)
    units = np.rint(np.ldexp(size, 3 - exponent)).astype(np.int32)
    # Sixteen units carry into the exponent, which gives the next power of two.
    values = np.where(size == 0, 0, ((exponent + 7) << 3) + units - 8)
    signed: Bytes = (values | np.signbit(x) * 128).astype(np.uint8)
    return signed
