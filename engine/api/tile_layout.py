"""Sizes of the tiles in which the native CPU kernels read quantized matrices. No torch.

The layout is that of engine/cpu/kernels/matrix.h.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from swiftchat.weights.quantization.scheme import Float8, Int4, Int8, Scheme

_TILE_ROWS, _BLOCK_COLS, _ALIGNMENT_BYTES = 16, 32, 64


@dataclass(frozen=True)
class TileLayout:
    """Values of 4 or 8 bits, with a scale and maybe a minimum for each group of columns.

    `group_cols` 0: a scale for each row only. Scales and minimums are fp16, or fp32 if
    `wide_tables`.
    """

    value_bits: int
    cols: int
    group_cols: int
    has_minimum: bool
    wide_tables: bool = False

    @property
    def table_bytes(self) -> int:
        """Bytes of a tile's scales, or of its minimums."""
        num_groups = -(-self.cols // self.group_cols) if self.group_cols else 0
        nbytes = num_groups * _TILE_ROWS * (4 if self.wide_tables else 2)
        return -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES

    @property
    def tile_bytes(self) -> int:
        block_bytes = _TILE_ROWS * _BLOCK_COLS * self.value_bits // 8
        tables = 2 if self.has_minimum else 1
        return tables * self.table_bytes + -(-self.cols // _BLOCK_COLS) * block_bytes

    def nbytes(self, rows: int) -> int:
        """Bytes of the tiles of so many rows."""
        return -(-rows // _TILE_ROWS) * self.tile_bytes


# Of ggml blocks: bits of a value, columns of a group, whether there are minimums.
_BLOCK_LAYOUTS: Mapping[str, tuple[int, int, bool]] = MappingProxyType(
    {
        "Q4_0": (4, 32, False),
        "Q4_1": (4, 32, True),
        "Q5_0": (8, 32, False),
        "Q5_1": (8, 32, True),
        "Q8_0": (8, 32, False),
        "IQ4_NL": (8, 32, False),
        "Q2_K": (4, 16, True),
        "Q3_K": (4, 16, False),
        "Q4_K": (4, 32, True),
        "Q5_K": (8, 32, True),
        "Q6_K": (8, 16, False),
        "IQ4_XS": (8, 32, False),
    }
)
BLOCK_TYPES = frozenset(_BLOCK_LAYOUTS)
# The scales and minimums of these blocks are products of an fp16 number and an integer below 256.
PRODUCT_TYPES = frozenset({"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"})


def block_layout(type_name: str, cols: int, *, exact: bool) -> TileLayout:
    """Return the layout of a matrix of ggml blocks of one of `BLOCK_TYPES`.

    With `exact` scales and minimums are not rounded to fp16.
    """
    value_bits, group_cols, has_minimum = _BLOCK_LAYOUTS[type_name]
    is_wide = exact and type_name in PRODUCT_TYPES
    return TileLayout(value_bits, cols, group_cols, has_minimum, is_wide)


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
        return TileLayout(8, cols, 0, has_minimum=False).nbytes(rows) + 4 * rows
    if scheme.matrix_type is Float8:
        if not float_groups_fit(scheme.group_size, cols):
            return None
        return rows * cols + 4 * rows * (cols // (scheme.group_size or cols))
    columns = group_cols(scheme.group_size, cols)
    if columns is None:
        return None
    value_bits = 4 if scheme.matrix_type is Int4 else 8
    return TileLayout(value_bits, cols, columns, True, wide_tables=exact).nbytes(rows)
