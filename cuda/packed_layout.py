"""Sizes of packed 8-bit and 4-bit matrices, and which shapes the kernels read. No torch.

A scheme is a row of `PACKED_SCHEMES`, and the header `kernels/schemes/NAME.cuh` says how the
kernels compute with its values. INT4 has scales and zero points for groups of columns; INT8 has
them or one scale a row, FP8 has scales of groups or of rows, MXFP4 and NVFP4 of groups. A packed
matrix consists of tiles of 8 rows by 64 bytes a row: see `PackedMatrix`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class PackedScheme:
    """How the kernels read the matrices of a scheme.

    `tile_columns` are those of 64 bytes of a row, `group_sizes` the numbers of columns that may
    share a scale; larger groups are divided. `entry_bytes` are those of a row's scale of a group,
    and of its zero point if it has one. `most_gemm_rows` are the activation rows up to which
    `packed_gemm` is faster than dequantizing for cuBLAS, where it has wgmma.
    """

    tile_columns: int
    group_sizes: tuple[int, ...]
    entry_bytes: int
    most_gemm_rows: int
    has_zero_points: bool = False
    """Of groups, beside their scales."""
    has_row_scales: bool = True
    """Of fp32, beside those of groups, too."""
    is_grouped: bool = True
    """Rows without groups are not read."""
    multiplies_integers: bool = False
    """One activation row is multiplied in integers."""
    scales_elements: bool = False
    """Scales of groups multiply elements, not sums; a row's entries are neighbors in a tile."""


PACKED_SCHEMES: Mapping[str, PackedScheme] = MappingProxyType(
    {
        "INT4": PackedScheme(
            128, (32, 64, 128), 4, 2048, has_zero_points=True, multiplies_integers=True
        ),
        "INT8": PackedScheme(
            64, (32,), 4, 1536, has_zero_points=True, is_grouped=False, multiplies_integers=True
        ),
        "FP8": PackedScheme(64, (32, 64), 2, 1536, is_grouped=False),
        "MXFP4": PackedScheme(128, (32,), 1, 2048, has_row_scales=False, scales_elements=True),
        "NVFP4": PackedScheme(128, (16,), 1, 2048, scales_elements=True),
    }
)
# Schemes with their group sizes; 0: one scale a row.
PACKINGS = [
    (name, size)
    for name, scheme in PACKED_SCHEMES.items()
    for size in (*(() if scheme.is_grouped else (0,)), *scheme.group_sizes)
]
TILE_ROWS = 8


def packed_group_size(scheme: str, k: int, group_size: int) -> int | None:
    """Return the group size in which the kernels read rows of k columns; None: they do not.

    It divides `group_size`; 0 means one scale a row.
    """
    if group_size == 0:
        return 0 if not PACKED_SCHEMES[scheme].is_grouped and k > 0 and k % 16 == 0 else None
    if k <= 0 or k % group_size:
        return None
    sizes = PACKED_SCHEMES[scheme].group_sizes
    return max((size for size in sizes if group_size % size == 0), default=None)


def packing_fits(scheme: str, k: int, group_size: int = 0) -> bool:
    """Return whether the kernels read rows of k columns in groups of exactly this size."""
    return packed_group_size(scheme, k, group_size) == group_size


def has_zero_points(scheme: str, group_size: int) -> bool:
    """Return whether the groups of a packed matrix have zero points beside their scales."""
    return group_size > 0 and PACKED_SCHEMES[scheme].has_zero_points


def has_row_scales(scheme: str) -> bool:
    """Return whether the rows of matrices have scales, fp32; those of PLAIN matrices have none."""
    return scheme in PACKED_SCHEMES and PACKED_SCHEMES[scheme].has_row_scales


def table_shape(scheme: str, group_size: int) -> tuple[int, int]:
    """Return how a tile has the entries of its groups: [groups, rows, bytes].

    If the entries of a row are neighbors they count as those of one group.
    """
    kind = PACKED_SCHEMES[scheme]
    groups = kind.tile_columns // group_size if group_size else 0
    return (1, groups * kind.entry_bytes) if kind.scales_elements else (groups, kind.entry_bytes)


def padded_columns(scheme: str, k: int) -> int:
    """Return k rounded up to whole tiles."""
    return -(-k // PACKED_SCHEMES[scheme].tile_columns) * PACKED_SCHEMES[scheme].tile_columns


def tile_bytes(scheme: str, group_size: int) -> int:
    """Return the bytes of a tile: quantized values, then fp16 scales and zero points."""
    groups, entry_bytes = table_shape(scheme, group_size)
    return TILE_ROWS * (64 + groups * entry_bytes)


def tiles_shape(scheme: str, rows: int, k: int, group_size: int) -> tuple[int, int]:
    """Return the number of row blocks (8 rows each) and the bytes of each."""
    tiles = padded_columns(scheme, k) // PACKED_SCHEMES[scheme].tile_columns
    return -(-rows // TILE_ROWS), tiles * tile_bytes(scheme, group_size)


def packed_bytes(scheme: str, rows: int, k: int, group_size: int = 0) -> int:
    """Return the bytes of a packed matrix with all its scales."""
    blocks, block_bytes = tiles_shape(scheme, rows, k, group_size)
    return blocks * block_bytes + (4 * rows if has_row_scales(scheme) else 0)
