"""Sizes of the tiles in which the native CPU kernels read quantized matrices. No torch.

The layout is that of engine/cpu/kernels/matrix.h.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from swiftchat.weights.quantization.scheme import Float8, Int4, Int8, Mxfp4, Nvfp4, Scheme

Values = Literal["int4", "int8", "mxfp4", "nvfp4"]

# Those whose scales are bytes.
_BYTE_SCALES: Mapping[type, Values] = MappingProxyType({Mxfp4: "mxfp4", Nvfp4: "nvfp4"})

_TILE_ROWS, _BLOCK_COLS, _ALIGNMENT_BYTES = 16, 32, 64


@dataclass(frozen=True)
class TileLayout:
    """Quantized values, with a scale and maybe a minimum for each group of columns.

    `group_cols` 0: a scale for each row only. Scales and minimums are fp16, or fp32 if
    `wide_tables`; those of MXFP4 are e8m0, those of NVFP4 e4m3.
    """

    values: Values
    cols: int
    group_cols: int
    has_minimum: bool
    wide_tables: bool = False

    @property
    def table_bytes(self) -> int:
        """Bytes of a tile's scales, or of its minimums."""
        num_groups = -(-self.cols // self.group_cols) if self.group_cols else 0
        entry_bytes = 1 if self.values in _BYTE_SCALES.values() else 4 if self.wide_tables else 2
        nbytes = num_groups * _TILE_ROWS * entry_bytes
        return -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES

    @property
    def tile_bytes(self) -> int:
        block_bytes = _TILE_ROWS * _BLOCK_COLS // (1 if self.values == "int8" else 2)
        tables = 2 if self.has_minimum else 1
        return tables * self.table_bytes + -(-self.cols // _BLOCK_COLS) * block_bytes

    def nbytes(self, rows: int) -> int:
        """Bytes of the tiles of so many rows."""
        return -(-rows // _TILE_ROWS) * self.tile_bytes


# Of ggml blocks: values, columns of a group, whether there are minimums.
_BLOCK_LAYOUTS: Mapping[str, tuple[Values, int, bool]] = MappingProxyType(
    {
        "Q4_0": ("int4", 32, False),
        "Q4_1": ("int4", 32, True),
        "Q5_0": ("int8", 32, False),
        "Q5_1": ("int8", 32, True),
        "Q8_0": ("int8", 32, False),
        "IQ4_NL": ("int8", 32, False),
        "Q2_K": ("int4", 16, True),
        "Q3_K": ("int4", 16, False),
        "Q4_K": ("int4", 32, True),
        "Q5_K": ("int8", 32, True),
        "Q6_K": ("int8", 16, False),
        "IQ4_XS": ("int8", 32, False),
        "MXFP4": ("mxfp4", 32, False),
    }
)
BLOCK_TYPES = frozenset(_BLOCK_LAYOUTS)
# The scales and minimums of these blocks are products of an fp16 number and an integer below 256.
PRODUCT_TYPES = frozenset({"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"})


def block_layout(type_name: str, cols: int, *, exact: bool) -> TileLayout:
    """Return the layout of a matrix of ggml blocks of one of `BLOCK_TYPES`.

    With `exact` scales and minimums are not rounded to fp16.
    """
    values, group_cols, has_minimum = _BLOCK_LAYOUTS[type_name]
    is_wide = exact and type_name in PRODUCT_TYPES
    return TileLayout(values, cols, group_cols, has_minimum, is_wide)


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
    if values := _BYTE_SCALES.get(scheme.matrix_type):
        row_scales = 4 * rows if scheme.matrix_type is Nvfp4 else 0
        return TileLayout(values, cols, columns, has_minimum=False).nbytes(rows) + row_scales
    values = "int4" if scheme.matrix_type is Int4 else "int8"
    return TileLayout(values, cols, columns, True, wide_tables=exact).nbytes(rows)
