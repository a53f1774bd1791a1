"""Quantized matrices as the packing function reads them (kernels/pack_source.h)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.engine.api.tile_layout import (
    TileLayout,
    block_layout,
    group_cols,
)
from swiftchat.engine.cpu.native import INT4_CENTER, PackSource, SourceKind
from swiftchat.weights.formats.ggml_grids import grid
from swiftchat.weights.quantization.scheme import (
    GgufBlocks,
    Int4,
    Int8,
    Int8Groups,
    Mxfp4,
    Nvfp4,
)

Spans = Sequence[tuple[int, int]]
Floats = npt.NDArray[np.float32]

_SMALLEST_NORMAL, _LARGEST = 2.0**-14, 65504.0  # of fp16
_MAX_SHIFT = 100  # exponent of a power of two that fp32 holds, and its reciprocal
_INT8_CENTER = 128

Tiled = Int4 | Int8 | Int8Groups | Mxfp4 | Nvfp4


@dataclass(frozen=True)
class Source:
    """The columns `spans` of a matrix, and the layout of its tiles.

    Scales and minimums are multiplied by `multiplier`, a power of two, and the rows of the tiles by
    its reciprocal. `references` own the memory that `struct` points to.
    """

    struct: PackSource
    spans: Spans
    layout: TileLayout
    multiplier: float = 1.0
    row_scale: Floats | None = None
    tensor_name: str = ""
    references: Sequence[object] = ()

    @property
    def rows(self) -> int:
        return int(self.struct.rows)

    @property
    def widened(self) -> "Source":
        """The same with fp32 scales and minimums."""
        return replace(self, layout=replace(self.layout, tables="fp32"), multiplier=1.0)


# The grids of types of ggml blocks; others have none.
_GRIDS: Mapping[str, str] = MappingProxyType(
    {
        **{name: name for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")},
        "IQ1_S": "IQ1",
        "IQ1_M": "IQ1",
    }
)


def block_source(matrix: GgufBlocks) -> Source:
    """Return the source for a matrix of one of `BLOCK_TYPES`."""
    layout = block_layout(matrix.type_name, matrix.columns, matrix.spans)
    points = grid(_GRIDS[matrix.type_name]) if matrix.type_name in _GRIDS else None
    struct = PackSource(
        kind=SourceKind[matrix.type_name],
        rows=len(matrix.blocks),
        cols=max(stop for _, stop in matrix.spans),
        stride=matrix.blocks.strides[0],
        values=matrix.blocks.ctypes.data,
        grid=None if points is None else points.ctypes.data,
    )
    references = (matrix.blocks, points)
    return Source(
        struct, matrix.spans, layout, tensor_name=matrix.tensor_name, references=references
    )


def array_source(matrix: Tiled, *, exact: bool) -> Source | None:
    """Return the source for a matrix; None: tiles cannot have its groups."""
    values = matrix.values
    cols = values.shape[1]
    if isinstance(matrix, Int8):
        layout = TileLayout("int8", cols, 0, has_minimum=False)
        scale = np.ascontiguousarray(matrix.scale, np.float32)
        struct = _array_struct(SourceKind.INT8, values, cols)
        return Source(struct, [(0, cols)], layout, row_scale=scale, references=(values,))
    is_4_bit = not isinstance(matrix, Int8Groups)
    kind = SourceKind.INT4 if is_4_bit else SourceKind.UINT8
    cols = 2 * cols if is_4_bit else cols
    num_groups = matrix.scale.shape[1]
    columns = group_cols(cols // num_groups, cols)
    if columns is None:
        return None
    tables = [np.ascontiguousarray(matrix.scale, np.float32)]
    row_scale: Floats | None = None
    if isinstance(matrix, Mxfp4):
        layout, multiplier = TileLayout("e2m1", cols, columns, False, "e8m0"), 1.0
    elif isinstance(matrix, Nvfp4):
        # Numbers of e2m1 are twice as large.
        layout, multiplier = TileLayout("e2m1", cols, columns, False, "e4m3", unit=0.5), 1.0
        row_scale = matrix.row_scale
    else:
        tables += _minimums(matrix)
        is_wide, multiplier = _table_width(tables, exact=exact)
        to = "int4" if is_4_bit else "int8"
        layout = TileLayout(to, cols, columns, len(tables) > 1, "fp32" if is_wide else "fp16")
    struct = _array_struct(kind, values, cols)
    struct.group_cols, struct.table_stride = cols // num_groups, num_groups
    struct.scale = tables[0].ctypes.data
    struct.minimum = tables[1].ctypes.data if len(tables) > 1 else None
    return Source(struct, [(0, cols)], layout, multiplier, row_scale, references=(values, *tables))


def _minimums(matrix: Int4 | Int8Groups) -> list[Floats]:
    """Return the minimums [rows, groups] of a matrix whose zero points are not all in the center.

    The stored values are q - lowest.
    """
    is_int4 = isinstance(matrix, Int4)
    center, lowest = (INT4_CENTER, 0) if is_int4 else (_INT8_CENTER, _INT8_CENTER)
    if not (matrix.zero_point != center).any():
        return []
    return [np.ascontiguousarray(-matrix.scale * (matrix.zero_point - lowest), np.float32)]


def _array_struct(kind: SourceKind, values: npt.NDArray[Any], cols: int) -> PackSource:
    assert values.strides[1] == 1
    return PackSource(
        kind=kind,
        rows=len(values),
        cols=cols,
        stride=values.strides[0],
        values=values.ctypes.data,
    )


def _table_width(tables: Sequence[Floats], *, exact: bool) -> tuple[bool, float]:
    """Return whether tables are fp32, and the power of two that they are multiplied by.

    They are fp16 if it holds them or, without `exact`, if all are in its normal range.
    """
    sizes = [np.abs(table) for table in tables]
    with np.errstate(over="ignore"):
        narrow = [table.astype(np.float16).astype(np.float32) for table in tables]
    if all(np.array_equal(n, table) for n, table in zip(narrow, tables, strict=True)):
        return False, 1.0
    smallest = min(float(s.min(initial=np.inf, where=s != 0)) for s in sizes)
    largest = max(float(s.max()) for s in sizes)
    if exact:
        return True, 1.0
    if smallest >= _SMALLEST_NORMAL and largest <= _LARGEST:
        return False, 1.0
    shift = math.frexp(_LARGEST)[1] - 1 - math.frexp(largest)[1]
    if abs(shift) > _MAX_SHIFT or math.ldexp(smallest, shift) < _SMALLEST_NORMAL:
        return True, 1.0
    return False, math.ldexp(1.0, shift)
