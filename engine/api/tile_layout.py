"""Sizes of the tiles in which the native CPU kernels read quantized matrices. No torch.

The layout is that of engine/cpu/kernels/matrix.h.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from swiftchat.weights.quantization.scheme import (
    Float8,
    Int4,
    Int8,
    Mxfp4,
    Nvfp4,
    Scheme,
    Spans,
    sliced_group_size,
)

Tables = Literal["fp16", "fp32", "e8m0", "e4m3", "bytes", "nibbles"]

_TILE_ROWS, _BLOCK_COLS, _ALIGNMENT_BYTES = 16, 32, 64
# Bits of a value; `engine/cpu/kernels/tile_values.h` has what they stand for.
_VALUE_BITS: Mapping[str, int] = MappingProxyType(
    {
        "int2": 2,
        "int3": 3,
        "int4": 4,
        "int5": 5,
        "int6": 6,
        "int8": 8,
        "iq1": 3,
        "iq2": 3,
        "iq3_xxs": 4,
        "iq3_s": 4,
        "iq4": 4,
        "e2m1": 4,
    }
)
_ENTRY_BITS: Mapping[Tables, int] = MappingProxyType(
    {"fp16": 16, "fp32": 32, "e8m0": 8, "e4m3": 8, "bytes": 8, "nibbles": 4}
)


@dataclass(frozen=True)
class TileLayout:
    """Quantized values, with a scale and maybe a minimum for each group of columns.

    `group_cols` 0: a scale for each row only. Scales and minimums are floats, or integers (bytes or
    nibbles) times `unit` times an fp16 factor for each `factor_cols` columns of a row. `unit`
    multiplies e4m3 scales, too.
    """

    values: str
    cols: int
    group_cols: int
    has_minimum: bool
    tables: Tables = "fp16"
    factor_cols: int = 0
    unit: float = 1.0

    @property
    def num_groups(self) -> int:
        return -(-self.cols // self.group_cols) if self.group_cols else 0

    @property
    def num_factors(self) -> int:
        return -(-self.cols // self.factor_cols) if self.factor_cols else 0

    @property
    def value_bits(self) -> int:
        return _VALUE_BITS[self.values]

    @property
    def table_bytes(self) -> int:
        """Bytes of a tile's scales, or of its minimums."""
        row_bytes = 2 * self.num_factors + -(-self.num_groups * _ENTRY_BITS[self.tables] // 8)
        return -(-row_bytes * _TILE_ROWS // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES

    @property
    def tile_bytes(self) -> int:
        block_bytes = _TILE_ROWS * _BLOCK_COLS * self.value_bits // 8
        tables = 2 if self.has_minimum else 1
        return tables * self.table_bytes + -(-self.cols // _BLOCK_COLS) * block_bytes

    def nbytes(self, rows: int) -> int:
        """Bytes of the tiles of so many rows."""
        return -(-rows // _TILE_ROWS) * self.tile_bytes


def _factored(values: str, group_cols: int, *, unit: float = 1.0) -> TileLayout:
    """Return the layout of superblocks of 256 columns, whose groups have signed bytes as scales."""
    return TileLayout(values, 256, group_cols, False, "bytes", 256, unit)


# The layout of each type of ggml blocks, of a matrix of 256 columns.
_BLOCK_LAYOUTS: Mapping[str, TileLayout] = MappingProxyType(
    {
        "Q1_0": TileLayout("int2", 256, 128, False),
        "Q4_0": TileLayout("int4", 256, 32, False),
        "Q4_1": TileLayout("int4", 256, 32, True),
        "Q5_0": TileLayout("int5", 256, 32, False),
        "Q5_1": TileLayout("int5", 256, 32, True),
        "Q8_0": TileLayout("int8", 256, 32, False),
        "Q2_K": TileLayout("int2", 256, 16, True, "nibbles", 256),
        "Q3_K": _factored("int3", 16),
        "Q4_K": TileLayout("int4", 256, 32, True, "bytes", 256),
        "Q5_K": TileLayout("int5", 256, 32, True, "bytes", 256),
        "Q6_K": _factored("int6", 16),
        "Q8_K": TileLayout("int8", 256, 256, False, "fp32"),
        "IQ1_S": TileLayout("int2", 256, 32, True, "bytes", 256, 1 / 8),
        "IQ1_M": TileLayout("iq1", 256, 16, False, "nibbles", 256, 1 / 8),
        "IQ2_XXS": _factored("iq2", 32, unit=1 / 8),
        "IQ2_XS": _factored("iq2", 16, unit=1 / 8),
        "IQ2_S": _factored("iq2", 16, unit=1 / 8),
        "IQ3_XXS": _factored("iq3_xxs", 32, unit=1 / 4),
        "IQ3_S": _factored("iq3_s", 32),
        "IQ4_NL": TileLayout("iq4", 256, 32, False),
        "IQ4_XS": _factored("iq4", 32),
        "TQ1_0": TileLayout("int2", 256, 256, False),
        "TQ2_0": TileLayout("int2", 256, 256, False),
        "MXFP4": TileLayout("e2m1", 256, 32, False, "e8m0"),
        "NVFP4": TileLayout("e2m1", 256, 16, False, "e4m3", unit=0.5),
    }
)
BLOCK_TYPES = frozenset(_BLOCK_LAYOUTS)


def block_layout(type_name: str, cols: int, spans: Spans = ()) -> TileLayout:
    """Return the layout of a matrix of ggml blocks of one of `BLOCK_TYPES`.

    `spans` are those of its columns in the blocks, (start, stop) each; none: all of them.
    """
    layout = _BLOCK_LAYOUTS[type_name]
    group_cols = sliced_group_size(layout.group_cols, spans)
    factor_cols = sliced_group_size(layout.factor_cols, spans) if layout.factor_cols else 0
    return replace(layout, cols=cols, group_cols=group_cols, factor_cols=factor_cols)


def group_cols(group_size: int, cols: int) -> int | None:
    """Return the columns that share a scale in tiles: 16 or a multiple of 32; None: neither fits.

    A group that is larger than the matrix is its only one.
    """
    if group_size >= cols:
        return -(-cols // _BLOCK_COLS) * _BLOCK_COLS
    if group_size % _BLOCK_COLS == 0:
        return group_size
    return 16 if group_size % 16 == 0 else None


def float_groups_fit(group_size: int, cols: int) -> bool:
    """Return whether the kernels read rows of 8-bit floats with scales of groups; 0: of rows."""
    return group_size in (0, cols) or group_size % _BLOCK_COLS == 0


def scheme_bytes(scheme: Scheme, rows: int, cols: int, *, exact: bool) -> int | None:
    """Return the most bytes of a matrix of this scheme; None: the kernels do not read its groups.

    Not all matrices have minimums, or scales that fp16 cannot hold.
    """
    if scheme.matrix_type is Int8:
        return TileLayout("int8", cols, 0, has_minimum=False).nbytes(rows) + 4 * rows
    if scheme.matrix_type is Float8:
        if not float_groups_fit(scheme.group_size, cols):
            return None
        return rows * cols + 4 * rows * (cols // (scheme.group_size or cols))
    columns = group_cols(scheme.group_size, cols)
    if columns is None:
        return None
    if scheme.matrix_type is Nvfp4:
        return TileLayout("e2m1", cols, columns, False, "e4m3").nbytes(rows) + 4 * rows
    if scheme.matrix_type is Mxfp4:
        return TileLayout("e2m1", cols, columns, has_minimum=False, tables="e8m0").nbytes(rows)
    values = "int4" if scheme.matrix_type is Int4 else "int8"
    return TileLayout(values, cols, columns, True, "fp32" if exact else "fp16").nbytes(rows)
