"""compressed-tensors: integers or 8-bit floats with factors, described by groups of layers.

Layout (the package `compressed-tensors`), for a matrix [rows, columns]: "pack-quantized" has
`weight_packed` int32 [rows, ⌈columns·bits/32⌉] of numbers plus 2^(bits−1), low first,
`weight_shape`, `weight_scale` [rows, groups] and, unless symmetric, `weight_zero_point` int32
[⌈rows·bits/32⌉, groups], packed along the rows in the same way. The other formats keep `weight`
as int8 or 8-bit float, with `weight_scale` and `weight_zero_point` for each tensor, row, group
of columns or block. weight = scale·(q − zero). Where a group has `input_activations` of 8 bits,
symmetric, for each token or tensor, inputs are rounded as `kept.Rounding` says, by `input_scale`
if not `dynamic`.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.quantization.fp8 import FLOAT8, scaled_tensor
from swiftchat.weights.quantization.quantized_tensor import (
    FLOATS,
    Floats,
    PackedTensor,
    Source,
    spread,
    unpack,
)
from swiftchat.weights.quantization.scheme import Int4, Int8, PackedSource, Rounding
from swiftchat.weights.quantization.settings import Settings

__all__ = ["tensors"]

_MAX_GROUPS = 64
_MAX_SIZE = 2**20
_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mixed-precision",
)
# The cache and outputs are not quantized here, which is more exact than the original run.
_INERT = {"quant_method", "ignore", "global_compression_ratio", "kv_cache_scheme", "version"}
_READ = {"config_groups", "format", "quantization_status", "sparsity_config"}
_INERT_OF_GROUP = {"targets", "output_activations"}
_INERT_OF_WEIGHTS = {"observer", "observer_kwargs", "scale_dtype", "zp_dtype"}
_READ_OF_WEIGHTS = {
    "num_bits",
    "type",
    "symmetric",
    "group_size",
    "strategy",
    "block_structure",
    "dynamic",
    "actorder",
}


@dataclass(frozen=True)
class _Inputs:
    """How inputs are rounded, by a factor in the file or, `dynamic`, one for each vector."""

    form: Literal["int8", "fp8"]
    dynamic: bool


@dataclass(frozen=True)
class _Scheme:
    """What one group of layers does to its weights; `block` None: one number a tensor or row."""

    floats: bool
    bits: int
    symmetric: bool
    group_size: int | None
    block: tuple[int, int] | None
    reordered: bool
    inputs: _Inputs | None


def tensors(settings: Settings, source: Source) -> dict[str, PackedTensor]:
    """Every `….weight_packed`, or `….weight` of 8 bits, with its factors as `….weight`.

    Which group a layer belongs to is told by its tensors: bits, dtype and zero points. A
    group's `targets` and `ignore` can name nothing else.
    """
    settings.refuse_others(_INERT | _READ)
    settings.text("format", _FORMATS)
    settings.text("quantization_status", ("compressed", "frozen"), "compressed")
    sparsity = settings.nested("sparsity_config")
    if sparsity.fields:
        sparsity.text("format", ("dense",))
    schemes = _schemes(settings.nested("config_groups"))
    found = {}
    for module in source.ending(".weight_packed"):
        found[f"{module}.weight"] = _packed(source, module, schemes)
    for name, info in source.tensors.items():
        if name.endswith(".weight") and info.dtype in (*FLOAT8, "I8"):
            found[name] = _whole(source, name.removesuffix(".weight"), schemes)
    return found


def _schemes(groups: Settings) -> list[_Scheme]:
    if not 0 < len(groups.fields) <= _MAX_GROUPS:
        raise BadModelFile(
            f"{groups.place}: expected 1 to {_MAX_GROUPS}, found {len(groups.fields)}"
        )
    found = []
    for name in groups.fields:
        group = groups.nested(name)
        group.refuse_others(_INERT_OF_GROUP | {"weights", "input_activations", "format"})
        group.text("format", _FORMATS, "mixed-precision")
        if group.fields.get("weights") is not None:
            inputs = _inputs(group.nested("input_activations"))
            found.append(_scheme(group.nested("weights"), inputs))
    return list(dict.fromkeys(found))


def _inputs(activations: Settings) -> _Inputs | None:
    """None for what is not rounded here: other widths, groups of columns, and with a zero.

    One factor found anew for all vectors of a batch would make a conversation depend on who else
    is in it: each vector has its own then too.
    """
    if not activations.fields:
        return None
    floats = activations.text("type", ("int", "float"), "int") == "float"
    bits = activations.integer("num_bits", range(1, 33), "a number of bits", 8)
    dynamic = activations.fields.get("dynamic") or False
    strategy = activations.fields.get("strategy") or "tensor"
    symmetric = activations.flag("symmetric", True)
    if bits != 8 or not symmetric or strategy not in ("token", "tensor") or dynamic == "local":
        return None
    return _Inputs("fp8" if floats else "int8", activations.flag("dynamic", False))


def _scheme(weights: Settings, inputs: _Inputs | None) -> _Scheme:
    weights.refuse_others(_INERT_OF_WEIGHTS | _READ_OF_WEIGHTS)
    floats = weights.text("type", ("int", "float"), "int") == "float"
    # Other widths were packed differently by different versions of the package.
    bits = weights.integer("num_bits", (8,) if floats else (2, 4, 8), "2, 4 or 8 (floats: 8)", 8)
    if weights.flag("dynamic", False):
        raise weights.bad("dynamic", "false", True)
    size = weights.fields.get("group_size")
    if size is not None:
        size = weights.integer("group_size", range(-1, _MAX_SIZE), "-1 or a size")
    named = {None: "tensor", -1: "channel"}.get(size, "group")
    strategy = weights.text("strategy", ("tensor", "channel", "group", "block"), named)
    block = _block(weights) if strategy == "block" else None
    if strategy == "group":
        if size is None or size < 1:
            raise weights.bad("group_size", "a size, as the strategy is group", size)
        block = 1, size
    symmetric = weights.flag("symmetric", True)
    order = weights.fields.get("actorder") or "weight"
    if order not in ("weight", "static", "group", "dynamic", True):
        raise weights.bad("actorder", "one of weight, static, group, dynamic", order)
    size = size if strategy == "group" else None
    reordered = order in ("group", "dynamic", True)
    return _Scheme(floats, bits, symmetric, size, block, reordered, inputs)


def _block(weights: Settings) -> tuple[int, int]:
    value = weights.fields.get("block_structure")
    if isinstance(value, str):
        value = [int(size) for size in value.split("x", 2) if size.isdecimal() and len(size) < 8]
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(type(size) is int and 0 < size <= _MAX_SIZE for size in value)
    ):
        raise weights.bad("block_structure", "two sizes", weights.fields.get("block_structure"))
    return value[0], value[1]


def _packed(source: Source, module: str, schemes: list[_Scheme]) -> PackedTensor:
    rows, columns = _stored_shape(source, module)
    _, words = source.shape(f"{module}.weight_packed", ("I32",), 2)
    zero = f"{module}.weight_zero_point"
    fitting = [
        scheme
        for scheme in schemes
        if not scheme.floats
        and -(-columns * scheme.bits // 32) == words
        and scheme.symmetric == (zero not in source.tensors)
        and source.tensors.get(f"{module}.weight_scale") is not None
        and _columns_of_scales(scheme, columns)
        == source.tensors[f"{module}.weight_scale"].shape[-1:]
    ]
    bits = {scheme.bits for scheme in fitting}
    if len(bits) != 1:
        raise BadModelFile(
            f"{module}.weight_packed: {rows} × {columns} numbers in {words} words a row, with "
            f"their factors, fit {len(fitting)} of the {len(schemes)} schemes of config_groups"
        )
    tensor = _packed_tensor(source, module, (rows, columns), fitting[0])
    return _with_inputs(source, module, tensor, fitting)


def _columns_of_scales(scheme: _Scheme, columns: int) -> tuple[int]:
    # A last group of fewer columns has no place in the format: it is never equal.
    if scheme.group_size is None:
        return (1,)
    return (columns // scheme.group_size if columns % scheme.group_size == 0 else -1,)


def _stored_shape(source: Source, module: str) -> tuple[int, int]:
    name = source.require(f"{module}.weight_shape", ("I64", "I32"), (2,))
    rows, columns = (int(size) for size in source.read(name))
    packed_rows, words = source.shape(f"{module}.weight_packed", ("I32",), 2)
    if rows != packed_rows or not 0 < columns <= words * 32:
        raise source.bad(name, f"{packed_rows} rows in {words} words each", f"[{rows}, {columns}]")
    return rows, columns


def _packed_tensor(
    source: Source, module: str, shape: tuple[int, int], scheme: _Scheme
) -> PackedTensor:
    rows, columns = shape
    bits = scheme.bits
    groups = columns // scheme.group_size if scheme.group_size else 1
    parts = {
        "packed": f"{module}.weight_packed",
        "shape": f"{module}.weight_shape",
        "scale": _scale(source, f"{module}.weight_scale", rows, groups),
    }
    if not scheme.symmetric:
        packed_rows = -(-rows * bits // 32)
        parts["zero"] = source.require(
            f"{module}.weight_zero_point", ("I32",), (packed_rows, groups)
        )
    if f"{module}.weight_g_idx" in source.tensors or scheme.reordered:
        parts["g_idx"] = source.require(f"{module}.weight_g_idx", ("I32", "I64"), (columns,))

    order = parts.get("g_idx")

    def decode(start: int, stop: int) -> Floats:
        numbers = unpack(source.words(parts["packed"])[start:stop], bits)[:, :columns]
        result = numbers.astype(np.float32)
        if scheme.symmetric:
            result -= np.float32(1 << (bits - 1))
        else:
            zeros = unpack(source.words(parts["zero"]).T, bits)[:, start:stop].T
            result -= _by_column(source, order, zeros.astype(np.float32), columns)
        scales = source.floats(parts["scale"]).reshape(-1, groups)
        scales = scales[start:stop] if len(scales) > 1 else scales
        result *= _by_column(source, order, scales, columns)
        return result

    def kept() -> Int4 | Int8:
        scale = np.broadcast_to(source.factors(parts["scale"]).reshape(-1, groups), (rows, groups))
        codes = source.read(parts["packed"]).view(np.uint8)
        if bits == 8:
            return Int8((codes[:, :columns] ^ np.uint8(128)).view(np.int8), scale[:, 0])
        zeros = np.full((rows, groups), 8, np.float32)
        if not scheme.symmetric:
            zeros = unpack(source.words(parts["zero"]).T, bits)[:, :rows].T.astype(np.float32)
        return Int4(codes[:, : columns // 2], scale, zeros)

    whole_rows = bits == 8 and groups == 1 and scheme.symmetric
    fits = order is None and (whole_rows or (bits == 4 and columns % 2 == 0))
    keeping = PackedSource(Int8, kept) if bits == 8 else PackedSource(Int4, kept, columns // groups)
    return PackedTensor("compressed-tensors", shape, parts, decode, keeping if fits else None)


def _scale(source: Source, name: str, rows: int, groups: int) -> str:
    one = source.tensors[name].shape if name in source.tensors else None
    shape = one if groups == 1 and one in ((), (1,)) else (rows, groups)
    return source.require(name, FLOATS, shape or ())


def _by_column(source: Source, order: str | None, table: Floats, columns: int) -> Floats:
    groups = table.shape[1]
    # -1 stands for columns in their own order.
    if order is None or (source.read(order) == -1).all():
        return spread(table, columns // groups, columns)
    return table[:, source.index(order, groups)]


def _whole(source: Source, module: str, schemes: list[_Scheme]) -> PackedTensor:
    name, scale = f"{module}.weight", f"{module}.weight_scale"
    zero = f"{module}.weight_zero_point"
    rows, columns = source.shape(name, (*FLOAT8, "I8"), 2)
    if scale not in source.tensors:
        raise BadModelFile(f"no tensor {scale}: expected the factor of {name}")
    floats = source.tensors[name].dtype in FLOAT8
    asymmetric = zero in source.tensors and not floats
    fitting = [
        scheme for scheme in schemes if scheme.floats == floats and scheme.symmetric != asymmetric
    ]
    shape = source.tensors[scale].shape
    blocks = {scheme.block for scheme in fitting if _fits(scheme.block, rows, columns, shape)}
    if len(blocks) != 1:
        raise BadModelFile(
            f"{name}: {source.tensors[name].dtype} {[rows, columns]} with factors {list(shape)} "
            f"fits {len(blocks)} of the {len(schemes)} schemes of config_groups"
        )
    block = blocks.pop()
    tensor = scaled_tensor(
        source, "compressed-tensors", name, scale, block, zero if asymmetric else None
    )
    return _with_inputs(source, module, tensor, [s for s in fitting if s.block == block])


def _with_inputs(
    source: Source, module: str, tensor: PackedTensor, fitting: Sequence[_Scheme]
) -> PackedTensor:
    """The tensor with what its inputs are rounded to, where all schemes that fit it agree."""
    found = {scheme.inputs for scheme in fitting}
    inputs = found.pop()
    if found or inputs is None:
        return tensor
    if inputs.dynamic:
        return dataclasses.replace(tensor, inputs=Rounding(inputs.form))
    name = f"{module}.input_scale"
    one = source.tensors[name].shape if name in source.tensors else ()
    source.require(name, FLOATS, one if one in ((), (1,)) else ())
    (scale,) = source.floats(name).reshape(-1).tolist()
    if not (math.isfinite(scale) and scale > 0):
        raise source.bad(name, "a finite factor above 0", str(scale))
    parts = {**tensor.parts, "input_scale": name}
    return dataclasses.replace(tensor, parts=parts, inputs=Rounding(inputs.form, scale))


def _fits(block: tuple[int, int] | None, rows: int, columns: int, shape: tuple[int, ...]) -> bool:
    if block is None:
        return shape in ((), (1,), (rows,), (rows, 1), (1, 1))
    if block[0] == 1 and columns % block[1]:
        return False
    return shape == (-(-rows // block[0]), -(-columns // block[1]))
