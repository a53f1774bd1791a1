"""Sizes of packed 8-bit and 4-bit matrices, and which shapes the kernels read. No torch.

A scheme is INT8, FP8, INT4 or MXFP4. INT4 has scales and zero points for groups of columns; INT8
has them or one scale a row, FP8 has scales of groups or of rows, MXFP4 of groups. A packed matrix
consists of tiles of 8 rows by 64 bytes a row: see `PackedMatrix`.
"""

# Columns that share a scale; larger groups are divided.
GROUP_SIZES = {"INT4": (32, 64, 128), "INT8": (32,), "FP8": (32, 64), "MXFP4": (32,)}
# Bytes of a row's scale of a group, and of its zero point if it has one.
_ENTRY_BYTES = {"INT4": 4, "INT8": 4, "FP8": 2, "MXFP4": 1}
# Schemes with their group sizes; 0: one scale a row.
PACKINGS = [("INT8", 0), ("FP8", 0), *((s, g) for s, sizes in GROUP_SIZES.items() for g in sizes)]
TILE_COLUMNS = {"INT4": 128, "INT8": 64, "FP8": 64, "MXFP4": 128}
TILE_ROWS = 8


def packed_group_size(scheme: str, k: int, group_size: int) -> int | None:
    """Return the group size in which the kernels read rows of k columns; None: they do not.

    It divides `group_size`; 0 means one scale a row.
    """
    if group_size == 0:
        return 0 if scheme in ("INT8", "FP8") and k > 0 and k % 16 == 0 else None
    if k <= 0 or k % group_size:
        return None
    sizes = GROUP_SIZES.get(scheme, ())
    return max((size for size in sizes if group_size % size == 0), default=None)


def packing_fits(scheme: str, k: int, group_size: int = 0) -> bool:
    """Return whether the kernels read rows of k columns in groups of exactly this size."""
    return packed_group_size(scheme, k, group_size) == group_size


def has_zero_points(scheme: str, group_size: int) -> bool:
    """Return whether the groups of a packed matrix have zero points beside their scales."""
    return group_size > 0 and scheme in ("INT4", "INT8")


def has_row_scales(scheme: str) -> bool:
    """Return whether the rows of matrices have scales, fp32."""
    return scheme in ("INT8", "FP8", "INT4")


def table_shape(scheme: str, group_size: int) -> tuple[int, int]:
    """Return how a tile has the entries of its groups: [groups, rows, bytes].

    The entries of a row of MXFP4 are neighbors: [1, rows, 4].
    """
    groups = TILE_COLUMNS[scheme] // group_size if group_size else 0
    return (1, groups) if scheme == "MXFP4" else (groups, _ENTRY_BYTES[scheme])


def padded_columns(scheme: str, k: int) -> int:
    """Return k rounded up to whole tiles."""
    return -(-k // TILE_COLUMNS[scheme]) * TILE_COLUMNS[scheme]


def tile_bytes(scheme: str, group_size: int) -> int:
    """Return the bytes of a tile: quantized values, then fp16 scales and zero points."""
    groups, entry_bytes = table_shape(scheme, group_size)
    return TILE_ROWS * (64 + groups * entry_bytes)


def tiles_shape(scheme: str, rows: int, k: int, group_size: int) -> tuple[int, int]:
    """Return the number of row blocks (8 rows each) and the bytes of each."""
    tiles = padded_columns(scheme, k) // TILE_COLUMNS[scheme]
    return -(-rows // TILE_ROWS), tiles * tile_bytes(scheme, group_size)


def packed_bytes(scheme: str, rows: int, k: int, group_size: int = 0) -> int:
    """Return the bytes of a packed matrix with all its scales."""
    blocks, block_bytes = tiles_shape(scheme, rows, k, group_size)
    return blocks * block_bytes + (4 * rows if has_row_scales(scheme) else 0)
