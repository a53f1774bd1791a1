"""compressed-tensors checkpoints: integers or 8-bit floats with scales, by groups of layers.

Layout (the package `compressed-tensors`), for a matrix [rows, columns]: "pack-quantized" stores
`weight_packed` int32 [rows, ⌈columns·bits/32⌉] of values plus 2^(bits−1), low bits first,
`weight_shape`, `weight_scale` [rows, groups] and, unless symmetric, `weight_zero_point` int32
[⌈rows·bits/32⌉, groups], packed along the rows in the same way. The other formats store `weight`
as int8 or 8-bit float, with `weight_scale` and `weight_zero_point` per tensor, row, group of
columns or block. weight = scale·(q − zero_point). "mxfp4-pack-quantized" stores MXFP4 (`mxfp4`):
`weight_packed` U8 [rows, columns/2] and `weight_scale` U8 [rows, groups]; "nvfp4-pack-quantized"
NVFP4 (`nvfp4`): `weight_packed`, `weight_scale` F8_E4M3 [rows, groups] and `weight_global_scale`
F32, by which scales are divided. A layer group with 8-bit
symmetric `input_activations`, per token or tensor, is W8A8 (`scheme.ActivationQuantization`), with
the scale `input_scale` unless `dynamic`.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.arrays import Floats
from swiftchat.weights.quantization import mxfp4, nvfp4
from swiftchat.weights.quantization.fp8 import FLOAT8, scaled_tensor
from swiftchat.weights.quantization.scheme import (
    ActivationQuantization,
    Int4,
    Int8,
    PackedSource,
    Scheme,
)
from swiftchat.weights.quantization.settings import Settings
from swiftchat.weights.quantization.stored_tensor import (
    FLOATS,
    CheckedTensors,
    StoredTensor,
    expand_groups,
    unpack_bits,
)

_MAX_GROUPS = 64
_FLOAT_GROUPS = mxfp4.GROUP_SIZE, nvfp4.GROUP_SIZE
_GROUP_STRATEGIES = "group", "tensor_group"
_MAX_SIZE = 2**20
_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mxfp4-pack-quantized",
    "nvfp4-pack-quantized",
    "mixed-precision",
)
# KV cache and outputs are not quantized here, which is more accurate than the original run.
_IGNORED = {"quant_method", "ignore", "global_compression_ratio", "kv_cache_scheme", "version"}
_READ = {"config_groups", "format", "quantization_status", "sparsity_config"}
_IGNORED_IN_GROUP = {"targets", "output_activations"}
_IGNORED_IN_WEIGHTS = {"observer", "observer_kwargs", "scale_dtype", "zp_dtype"}
_READ_IN_WEIGHTS = {
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
class _Activations:
    """How inputs are quantized: with a scale from the file or, `dynamic`, one per vector."""

    dtype: Literal["int8", "fp8"]
    dynamic: bool


@dataclass(frozen=True)
class _LayerGroup:
    """How one group of layers is quantized; `block` None: one scale per tensor or row."""

    is_float: bool
    bits: int
    symmetric: bool
    group_size: int | None
    block: tuple[int, int] | None
    reordered: bool
    activations: _Activations | None


def tensors(settings: Settings, source: CheckedTensors) -> dict[str, StoredTensor]:
    """Return every `….weight_packed`, or `….weight` of 8 bits, with its scales as `….weight`.

    The tensors of a layer determine its group: bits, dtype and zero points. The group's
    `targets` and `ignore` are not needed.
    """
    settings.reject_unknown(_IGNORED | _READ)
    settings.text("format", _FORMATS)
    settings.text("quantization_status", ("compressed", "frozen"), "compressed")
    sparsity = settings.nested("sparsity_config")
    if sparsity.fields:
        sparsity.text("format", ("dense",))
    layer_groups = _layer_groups(settings.nested("config_groups"))
    found = {}
    for module in source.stems(".weight_packed"):
        is_bytes = source.tensors[f"{module}.weight_packed"].dtype == "U8"
        read = _four_bit_floats if is_bytes else _packed
        found[f"{module}.weight"] = read(source, module, layer_groups)
    for name, info in source.tensors.items():
        if name.endswith(".weight") and info.dtype in (*FLOAT8, "I8"):
            found[name] = _eight_bits(source, name.removesuffix(".weight"), layer_groups)
    return found


def _layer_groups(groups: Settings) -> list[_LayerGroup]:
    if not 0 < len(groups.fields) <= _MAX_GROUPS:
        raise BadModelFile(
            f"{groups.place}: expected 1 to {_MAX_GROUPS}, found {len(groups.fields)}"
        )
    found = []
    for name in groups.fields:
        group = groups.nested(name)
        group.reject_unknown(_IGNORED_IN_GROUP | {"weights", "input_activations", "format"})
        group.text("format", _FORMATS, "mixed-precision")
        if group.fields.get("weights") is not None:
            activations = _activations(group.nested("input_activations"))
            found.append(_layer_group(group.nested("weights"), activations))
    return list(dict.fromkeys(found))


def _activations(activations: Settings) -> _Activations | None:
    """Return None for schemes not applied here: other widths, groups of columns, zero points.

    A dynamic scale per tensor would make a conversation depend on the others in its batch: it is
    replaced by one per vector.
    """
    if not activations.fields:
        return None
    is_float = activations.text("type", ("int", "float"), "int") == "float"
    bits = activations.integer("num_bits", range(1, 33), "a number of bits", 8)
    dynamic = activations.fields.get("dynamic") or False
    strategy = activations.fields.get("strategy") or "tensor"
    symmetric = activations.flag("symmetric", True)
    if bits != 8 or not symmetric or strategy not in ("token", "tensor") or dynamic == "local":
        return None
    return _Activations("fp8" if is_float else "int8", activations.flag("dynamic", False))


def _layer_group(weights: Settings, activations: _Activations | None) -> _LayerGroup:
    weights.reject_unknown(_IGNORED_IN_WEIGHTS | _READ_IN_WEIGHTS)
    is_float = weights.text("type", ("int", "float"), "int") == "float"
    # Versions of the package packed other widths differently.
    widths = (4, 8) if is_float else (2, 4, 8)
    bits = weights.integer("num_bits", widths, "2, 4 or 8 (floats: 4 or 8)", 8)
    if weights.flag("dynamic", False):
        raise weights.error("dynamic", "false", True)
    size = weights.fields.get("group_size")
    if size is not None:
        size = weights.integer("group_size", range(-1, _MAX_SIZE), "-1 or a size")
    default = {None: "tensor", -1: "channel"}.get(size, "group")
    strategies = "tensor", "channel", "group", "block", "tensor_group"
    strategy = weights.text("strategy", strategies, default)
    block = _block(weights) if strategy == "block" else None
    if strategy in _GROUP_STRATEGIES:
        if size is None or size < 1:
            raise weights.error("group_size", f"a size, as the strategy is {strategy}", size)
        block = 1, size
    symmetric = weights.flag("symmetric", True)
    if is_float and bits == 4 and (size not in _FLOAT_GROUPS or not symmetric):
        expected = "32, symmetric: MXFP4, or 16: NVFP4"
        raise weights.error("group_size", expected, size)
    order = weights.fields.get("actorder") or "weight"
    if order not in ("weight", "static", "group", "dynamic", True):
        raise weights.error("actorder", "one of weight, static, group, dynamic", order)
    size = size if strategy in _GROUP_STRATEGIES else None
    reordered = order in ("group", "dynamic", True)
    return _LayerGroup(is_float, bits, symmetric, size, block, reordered, activations)


def _block(weights: Settings) -> tuple[int, int]:
    value = weights.fields.get("block_structure")
    if isinstance(value, str):
        value = [int(size) for size in value.split("x", 2) if size.isdecimal() and len(size) < 8]
    return weights.two_sizes("block_structure", _MAX_SIZE, value)


def _packed(source: CheckedTensors, module: str, layer_groups: list[_LayerGroup]) -> StoredTensor:
    rows, columns = _stored_shape(source, module)
    _, words = source.shape(f"{module}.weight_packed", ("I32",), 2)
    has_zero_points = f"{module}.weight_zero_point" in source.tensors
    scale = source.tensors.get(f"{module}.weight_scale")
    matching = [
        group
        for group in layer_groups
        if not group.is_float
        and -(-columns * group.bits // 32) == words
        and group.symmetric == (not has_zero_points)
        and scale is not None
        and _scales_per_row(group, columns) == (scale.shape[-1:] or (1,))
    ]
    if len({group.bits for group in matching}) != 1:
        raise BadModelFile(
            f"{module}.weight_packed: {rows} × {columns} values in {words} words per row, with "
            f"their scales, match {len(matching)} of the {len(layer_groups)} config_groups"
        )
    tensor = _packed_tensor(source, module, (rows, columns), matching[0])
    return _with_activations(source, module, tensor, matching)


def _four_bit_floats(
    source: CheckedTensors, module: str, layer_groups: list[_LayerGroup]
) -> StoredTensor:
    """Return a matrix of NVFP4, which is the one with a global scale, or MXFP4."""
    name, scale = f"{module}.weight_packed", f"{module}.weight_scale"
    sizes = {group.group_size for group in layer_groups if group.is_float and group.bits == 4}
    if not sizes:
        raise source.error(name, "I32, as no config_group has floats of 4 bits", "U8")
    global_scale = f"{module}.weight_global_scale"
    if sizes == {mxfp4.GROUP_SIZE} or (
        mxfp4.GROUP_SIZE in sizes and global_scale not in source.tensors
    ):
        return mxfp4.stored_matrix(source, "compressed-tensors", name, scale)
    return nvfp4.stored_matrix(
        source, "compressed-tensors", name, scale, global_scale, divides=True
    )


def _scales_per_row(group: _LayerGroup, columns: int) -> tuple[int]:
    # The format has no shorter last group: -1 never equals a size.
    if group.group_size is None:
        return (1,)
    return (columns // group.group_size if columns % group.group_size == 0 else -1,)


def _stored_shape(source: CheckedTensors, module: str) -> tuple[int, int]:
    name = source.require(f"{module}.weight_shape", ("I64", "I32"), (2,))
    rows, columns = (int(size) for size in source.read(name))
    packed_rows, words = source.shape(f"{module}.weight_packed", ("I32",), 2)
    if rows != packed_rows or not 0 < columns <= words * 32:
        expected = f"{packed_rows} rows in {words} words each"
        raise source.error(name, expected, f"[{rows}, {columns}]")
    return rows, columns


def _packed_tensor(
    source: CheckedTensors, module: str, shape: tuple[int, int], group: _LayerGroup
) -> StoredTensor:
    rows, columns = shape
    bits = group.bits
    groups = columns // group.group_size if group.group_size else 1
    parts = {
        "packed": f"{module}.weight_packed",
        "shape": f"{module}.weight_shape",
        "scale": _scale(source, f"{module}.weight_scale", rows, groups),
    }
    if not group.symmetric:
        packed_rows = -(-rows * bits // 32)
        parts["zero_point"] = source.require(
            f"{module}.weight_zero_point", ("I32",), (packed_rows, groups)
        )
    if f"{module}.weight_g_idx" in source.tensors or group.reordered:
        parts["g_idx"] = source.require(f"{module}.weight_g_idx", ("I32", "I64"), (columns,))
    order = parts.get("g_idx")

    def zero_points(start: int, stop: int) -> Floats:
        """Zero points [stop − start, groups]."""
        stored = unpack_bits(source.read_words(parts["zero_point"]).T, bits)[:, start:stop]
        return stored.T.astype(np.float32)

    def dequantize(start: int, stop: int) -> Floats:
        values = unpack_bits(source.read_words(parts["packed"])[start:stop], bits)[:, :columns]
        result = values.astype(np.float32)
        if group.symmetric:
            result -= np.float32(1 << (bits - 1))
        else:
            result -= _by_column(source, order, zero_points(start, stop), columns)
        scales = source.read_floats(parts["scale"]).reshape(-1, groups)
        scales = scales[start:stop] if len(scales) > 1 else scales
        result *= _by_column(source, order, scales, columns)
        return result

    def read_packed() -> Int4 | Int8:
        scales = source.read_scales(parts["scale"]).reshape(-1, groups)
        scale = np.broadcast_to(scales, (rows, groups))
        values = source.read(parts["packed"]).view(np.uint8)
        if bits == 8:
            return Int8((values[:, :columns] ^ np.uint8(128)).view(np.int8), scale[:, 0])
        zero_point = np.full((rows, groups), 8, np.float32)
        if not group.symmetric:
            zero_point = zero_points(0, rows)
        return Int4(values[:, : columns // 2], scale, zero_point)

    packed = None
    if order is None and bits == 8 and groups == 1 and group.symmetric:
        packed = PackedSource(Scheme(Int8), read_packed)
    elif order is None and bits == 4 and columns % 2 == 0:
        packed = PackedSource(Scheme(Int4, columns // groups), read_packed)
    return StoredTensor("compressed-tensors", shape, parts, dequantize, packed)


def _scale(source: CheckedTensors, name: str, rows: int, groups: int) -> str:
    stored = source.tensors[name].shape if name in source.tensors else None
    shape = stored if groups == 1 and stored in ((), (1,)) else (rows, groups)
    return source.require(name, FLOATS, shape or ())


def _by_column(source: CheckedTensors, order: str | None, table: Floats, columns: int) -> Floats:
    groups = table.shape[1]
    # An index of -1 means columns in their own order.
    if order is None or (source.read(order) == -1).all():
        return expand_groups(table, columns // groups, columns)
    return table[:, source.read_group_index(order, groups)]


def _eight_bits(
    source: CheckedTensors, module: str, layer_groups: list[_LayerGroup]
) -> StoredTensor:
    name, scale = f"{module}.weight", f"{module}.weight_scale"
    zero_point = f"{module}.weight_zero_point"
    rows, columns = source.shape(name, (*FLOAT8, "I8"), 2)
    if scale not in source.tensors:
        raise BadModelFile(f"no tensor {scale}: expected the scale of {name}")
    is_float = source.tensors[name].dtype in FLOAT8
    asymmetric = zero_point in source.tensors and not is_float
    matching = [
        group
        for group in layer_groups
        if group.is_float == is_float and group.symmetric != asymmetric
    ]
    shape = source.tensors[scale].shape
    blocks = {
        group.block for group in matching if _block_matches(group.block, rows, columns, shape)
    }
    if len(blocks) != 1:
        raise BadModelFile(
            f"{name}: {source.tensors[name].dtype} {[rows, columns]} with scales {list(shape)} "
            f"matches {len(blocks)} of the {len(layer_groups)} config_groups"
        )
    block = blocks.pop()
    tensor = scaled_tensor(
        source, "compressed-tensors", name, scale, block, zero_point if asymmetric else None
    )
    return _with_activations(source, module, tensor, [g for g in matching if g.block == block])


def _with_activations(
    source: CheckedTensors, module: str, tensor: StoredTensor, matching: Sequence[_LayerGroup]
) -> StoredTensor:
    """Add the quantization of the inputs, if all matching layer groups agree on it."""
    found = {group.activations for group in matching}
    activations = found.pop()
    if found or activations is None:
        return tensor
    if activations.dynamic:
        quantization = ActivationQuantization(activations.dtype)
        return dataclasses.replace(tensor, activations=quantization)
    name = f"{module}.input_scale"
    shape = source.tensors[name].shape if name in source.tensors else ()
    source.require(name, FLOATS, shape if shape in ((), (1,)) else ())
    (scale,) = source.read_floats(name).reshape(-1).tolist()
    if not (math.isfinite(scale) and scale > 0):
        raise source.error(name, "a finite scale above 0", str(scale))
    return dataclasses.replace(
        tensor,
        parts={**tensor.parts, "input_scale": name},
        activations=ActivationQuantization(activations.dtype, scale),
    )


def _block_matches(
    block: tuple[int, int] | None, rows: int, columns: int, shape: tuple[int, ...]
) -> bool:
    if block is None:
        return shape in ((), (1,), (rows,), (rows, 1), (1, 1))
    if block[0] == 1 and columns % block[1]:
        return False
    return shape == (-(-rows // block[0]), -(-columns // block[1]))
