"""Matrices of 8-bit floats with a factor for each tensor, row or block.

Layout (transformers' `FineGrainedFP8Config`, DeepSeek-V3's published weights, AutoFP8, FBGEMM):
`weight` F8_E4M3 [rows, columns] and `weight_scale` or `weight_scale_inv`, both of them factors
whatever the name says: one, one a row, or one for each block of `weight_block_size`.
weight[r, c] = e4m3(byte[r, c])·scale[r // height, c // width].
"""

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.quantization.quantized_tensor import (
    FLOATS,
    Floats,
    PackedTensor,
    Source,
    spread,
)
from swiftchat.weights.quantization.scheme import Float8, Int8, PackedSource
from swiftchat.weights.quantization.settings import Settings

__all__ = ["FLOAT8", "scaled_tensor", "tensors"]

Block = tuple[int, int]

_MAX_BLOCK = 2**20
_SCALES = ("weight_scale_inv", "weight_scale")
# `activation_scheme` and the bounds of activations concern what is multiplied with the weights.
_INERT = {
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
    """All 256 numbers: sign, 4 bits of exponent, 3 of fraction; no infinities, two NaNs."""
    byte = np.arange(256)
    exponent, fraction = (byte >> 3) & 15, byte & 7
    size = np.where(
        exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7)
    )
    size[[0x7F, 0xFF]] = np.nan
    return np.where(byte < 128, size, -size).astype(np.float32)


def _e5m2() -> Floats:
    """All 256 numbers: the upper bytes of half-precision ones."""
    return (np.arange(256, dtype=np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)


# Values by byte, from "FP8 Formats for Deep Learning" (Micikevicius et al., 2022).
FLOAT8 = {"F8_E4M3": _e4m3(), "F8_E5M2": _e5m2()}


def tensors(settings: Settings, source: Source) -> dict[str, PackedTensor]:
    """Every 8-bit float matrix `….weight` with its factor."""
    settings.refuse_others(_INERT | _READ)
    settings.text("fmt", ("e4m3",), "e4m3")
    settings.text("scale_fmt", ("float", "ue8m0"), "float")
    settings.text("expert_dtype", ("fp8",), "fp8")
    block = _block(settings)
    found: dict[str, PackedTensor] = {}
    for name, info in source.tensors.items():
        if info.dtype not in FLOAT8:
            continue
        module = name.removesuffix(".weight")
        scales = [f"{module}.{scale}" for scale in _SCALES if f"{module}.{scale}" in source.tensors]
        if module == name or len(scales) != 1:
            raise BadModelFile(
                f"{info.file}: tensor {name}: expected one factor beside it, "
                f"{module}.weight_scale or {module}.weight_scale_inv, found {len(scales)}"
            )
        found[name] = scaled_tensor(source, "fp8", name, scales[0], block)
    return found


def _block(settings: Settings) -> Block | None:
    value = settings.fields.get("weight_block_size")
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(type(size) is int and 0 < size <= _MAX_BLOCK for size in value)
    ):
        raise settings.bad("weight_block_size", "two sizes", value)
    return value[0], value[1]


def scaled_tensor(
    source: Source, form: str, name: str, scale: str, block: Block | None, zero: str | None = None
) -> PackedTensor:
    """The matrix `name`, 8-bit floats or integers, less `zero`, times `scale`.

    Both are one number, one a row ([rows] or [rows, 1]) or, where that is not their shape, one
    for each `block`; blocks at the ends may be smaller.
    """
    rows, columns = source.shape(name, (*FLOAT8, "I8"), 2)
    shape = source.tensors[scale].shape
    if shape in ((), (1,), (1, 1)):
        block = rows, columns
    elif shape in ((rows,), (rows, 1)):
        block = 1, columns
    elif block is None:
        raise source.bad(scale, f"one number or {rows}", f"the shape {list(shape)}")
    else:
        source.require(scale, FLOATS, (-(-rows // block[0]), -(-columns // block[1])))
    source.require(scale, FLOATS, shape)
    parts = {"weight": name, "scale": scale}
    if zero is not None:
        parts["zero"] = source.require(zero, ("I8",), shape)
    height, width = block
    table = -(-rows // height), -(-columns // width)

    def decode(start: int, stop: int) -> Floats:
        stored = source.read(name)[start:stop]
        block_of_row = np.arange(start, stop) // height
        kind = FLOAT8.get(source.tensors[name].dtype)
        result = stored.astype(np.float32) if kind is None else kind[stored]
        if zero is not None:
            zeros = source.read(zero).astype(np.float32).reshape(table)
            result -= spread(zeros[block_of_row], width, columns)
        scales = source.floats(scale).reshape(table)
        result *= spread(scales[block_of_row], width, columns)
        return result

    def kept() -> Float8 | Int8:
        by_row = np.broadcast_to(source.factors(scale).reshape(-1), (rows,))
        codes = source.read(name)
        if codes.dtype == np.int8:
            return Int8(codes, by_row)
        if (codes & np.uint8(127) == 127).any():
            raise source.bad(name, "finite numbers", "others")
        return Float8(codes, by_row)

    fits = zero is None and width >= columns and height in (1, rows)
    kind = {"F8_E4M3": Float8, "I8": Int8}.get(source.tensors[name].dtype)
    keeping = PackedSource(kind, kept) if fits and kind else None
    return PackedTensor(form, (rows, columns), parts, decode, keeping)
