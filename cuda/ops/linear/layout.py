"""How `linear` divides a matmul: splits of k, stages of the weight ring, shared memory."""

from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.row_changes import narrow_elements
from swiftchat.cuda.packed_layout import (
    PACKED_SCHEMES,
    TILE_ROWS,
    has_zero_points,
    padded_columns,
    tile_bytes,
)
from swiftchat.cuda.packed_matrix import Matrix, PackedMatrix
from swiftchat.cuda.tensor_map import tensor_map

MAX_GEMV_ROWS = 16  # activation rows
M_TILE = 16  # weight rows of a stage
MAX_SPLITS = 16
THREADS = 352
# Stages of 16 to 20 KB. Four leave room for the next kernel's block on the same multiprocessor; so
# do five of plain weights beside few activation rows. See docs/notes/kernels.md.
_RING_STAGES, _MORE_STAGES, _FEW_ROWS = 4, 5, 4
_SPLIT_COLUMNS = 512  # splits are multiples of this
_CHUNK_BYTES = 1024  # of a weight row, whose columns a cluster divides
_BOX_BYTES = 512  # of a plain weight row in a box
_SUMS_BYTES = 1312  # of an activation row
# Of a block, and for each activation row: partial sums and angles.
_STATIC_BYTES = 512, _SUMS_BYTES + 1024


@dataclass(frozen=True)
class Layout:
    """A launch's clusters, splits of k, ring stages and bytes of dynamic shared memory."""

    cluster: int  # blocks that share the columns
    num_splits: int
    num_stages: int
    shared_bytes: int
    stream_x: bool  # whether stages have the columns of x, too

    @classmethod
    def of(
        cls,
        gpu: Gpu,
        n: int,
        weight: Matrix,
        *,
        has_norm: bool = False,
        has_changes: bool = False,
    ) -> "Layout":
        """Return the layout for n activation rows, which must fit, with or without `RowChanges`."""
        cluster = _cluster(gpu, n, has_changes=has_changes)
        num_splits = _num_splits(gpu, n, weight, has_changes=has_changes) or 1
        x_bytes, stage_bytes = n * _row_bytes(n, weight, num_splits, cluster), _stage_bytes(weight)
        is_plain = not isinstance(weight, PackedMatrix)
        is_16_bit = weight.dtype.itemsize == 2
        stream_x = streams_x(cluster, is_16_bit=is_16_bit, is_plain=is_plain, norm=has_norm)
        if stream_x:
            num_splits, x_bytes = 1, 0
            stage_bytes += compiled_rows(n) * _CHUNK_BYTES // cluster
        room = gpu.block_shared_bytes - _static_bytes(n, has_changes=has_changes) - x_bytes
        is_few = gpu.has_copy_engine and is_plain and n <= _FEW_ROWS
        num_stages = min(_MORE_STAGES if is_few else _RING_STAGES, room // stage_bytes)
        # More than a third of a multiprocessor's shared memory: two blocks share it, never three.
        # The blocks of a kernel replace those of the kernel before the last one by one, so every
        # multiprocessor holds one block of each, even if there are more blocks than work. A packed
        # weight's cluster takes more than half: its block does not always fit beside the one before
        # it, and then two blocks of a kernel must not share a multiprocessor.
        least = gpu.sm_shared_bytes // 3
        if cluster > 1 and not is_plain:
            least = gpu.sm_shared_bytes // 2 - compiled_rows(n) * _SUMS_BYTES
        shared_bytes = max(num_stages * stage_bytes + x_bytes, least)
        return cls(cluster, num_splits, num_stages, shared_bytes, stream_x)

    def maps(self, gpu: Gpu, x: Tensor, weight: Matrix, box_rows: int) -> dict[str, Any]:
        """Return the kernel's tensor maps: of a plain weight, and of streamed activations."""
        maps = {}
        if not isinstance(weight, PackedMatrix):
            maps["map"] = partial(tensor_map, gpu, weight, box_rows, _BOX_BYTES)
        if self.stream_x:
            maps["x_map"] = partial(tensor_map, gpu, x, len(x))
        return maps


def streams_x(cluster: int, *, is_16_bit: bool, is_plain: bool, norm: bool) -> bool:
    """Return whether activations come with the weights of each stage.

    They then need no time of their own, and little room.
    """
    return cluster > 1 and is_16_bit and is_plain and not norm


def box_rows_of(pair_span: int) -> int:
    """Return how many neighboring weight rows are in a box: 8, or 4 for head_dims like 72."""
    return 4 if pair_span < 256 and pair_span % 16 else 8


def linear_fits(
    gpu: Gpu,
    n: int,
    weight: Matrix,
    *,
    splittable: bool = False,
    pair_span: int = M_TILE,
    has_changes: bool = False,
) -> bool:
    """Return whether `linear` takes n activation rows with this weight.

    `has_changes`: with `RowChanges`.
    `splittable` allows k to be split. Weight rows that are finished in pairs are pair_span / 2
    apart: half the rows for gate and up, half a head for rotary embedding. Packed weights need
    whole tiles of 8 rows between them.
    """
    k = weight.shape[1]
    if not 1 <= n <= MAX_GEMV_ROWS or k * weight.dtype.itemsize % 16:
        return False
    if isinstance(weight, PackedMatrix) and pair_span % (2 * TILE_ROWS):
        return False
    num_splits = _num_splits(gpu, n, weight, has_changes=has_changes)
    return num_splits is not None and (num_splits == 1 or splittable)


def compiled_rows(n: int) -> int:
    """Return the number of activation rows that the kernel for n rows is compiled for."""
    return 1 if n == 1 else 8 if n <= 8 else 16


def _static_bytes(n: int, *, has_changes: bool) -> int:
    """Return the most bytes of shared memory that do not depend on k."""
    block, row = _STATIC_BYTES
    narrow = 4 * narrow_elements(compiled_rows(n)) if has_changes else 0
    return block + compiled_rows(n) * row + narrow


def _stage_bytes(weight: Matrix) -> int:
    if not isinstance(weight, PackedMatrix):
        return M_TILE * _CHUNK_BYTES
    tiles = M_TILE // TILE_ROWS * _CHUNK_BYTES // 64
    return tiles * tile_bytes(weight.scheme, weight.group_size)


def _num_splits(gpu: Gpu, n: int, weight: Matrix, *, has_changes: bool) -> int | None:
    """Return the least number of splits of k with room for a few stages beside the activations.

    None if even `MAX_SPLITS` are too few.
    """
    min_stages = 2 if isinstance(weight, PackedMatrix) and weight.group_size else 3
    static = _static_bytes(n, has_changes=has_changes)
    room = gpu.block_shared_bytes - static - min_stages * _stage_bytes(weight)
    cluster = _cluster(gpu, n, has_changes=has_changes)
    counts = range(1, MAX_SPLITS + 1)
    return next((s for s in counts if n * _row_bytes(n, weight, s, cluster) <= room), None)


def _cluster(gpu: Gpu, n: int, *, has_changes: bool) -> int:
    """Return the number of blocks that share the columns: several rows are loaded by two."""
    return 2 if n > 1 and gpu.has_copy_engine and not has_changes else 1


def _row_bytes(n: int, weight: Matrix, num_splits: int, cluster: int) -> int:
    """Return the bytes of an activation row's split in shared memory.

    They include the sums over groups, and of an int8-plane activation the scales.
    """
    itemsize, k = weight.dtype.itemsize, weight.shape[1]
    chunk = _CHUNK_BYTES // itemsize
    if isinstance(weight, PackedMatrix):
        k = padded_columns(weight.scheme, k)
        chunk = _CHUNK_BYTES // 64 * PACKED_SCHEMES[weight.scheme].tile_columns
    columns = min(k, _split_columns(k, num_splits))
    if cluster > 1:
        columns = ceil(columns / chunk) * chunk // cluster
    if not isinstance(weight, PackedMatrix):
        return _padded(columns * itemsize)
    group_size = weight.group_size or PACKED_SCHEMES[weight.scheme].tile_columns
    if n == 1 and PACKED_SCHEMES[weight.scheme].multiplies_integers and itemsize == 2:
        return 2 * _padded(columns) + 8 * (columns // group_size | 1)
    has_sums = has_zero_points(weight.scheme, weight.group_size)
    return _padded(columns * itemsize) + (4 * (columns // group_size | 1) if has_sums else 0)


def _split_columns(k: int, num_splits: int) -> int:
    return ceil(ceil(k / num_splits) / _SPLIT_COLUMNS) * _SPLIT_COLUMNS


def _padded(num_bytes: int) -> int:
    """Return the bytes from one row to the next, padded so that rows begin in different banks."""
    return ceil(num_bytes / 128) * 128 + 64
