"""How `linear` divides a matmul: splits of k, stages of the weight ring, shared memory."""

from dataclasses import dataclass
from math import ceil

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.row_changes import narrow_elements
from swiftchat.cuda.packed_layout import TILE_COLUMNS, TILE_ROWS, padded_columns, tile_bytes
from swiftchat.cuda.packed_matrix import Matrix, PackedMatrix

MAX_GEMV_ROWS = 16  # activation rows
M_TILE = 16  # weight rows of a stage
MAX_SPLITS = 16
THREADS = 352
# Stages of 16 to 20 KB. Four leave room for the next kernel's block on the same multiprocessor.
# Five do too, but are slower: see docs/notes/kernels.md.
_RING_STAGES = 4
_SPLIT_COLUMNS = 512  # splits are multiples of this
_CHUNK_BYTES = 1024  # of a weight row in a stage
_STATIC_BYTES = 512, 2336  # of a block, and for each activation row: partial sums and angles


@dataclass(frozen=True)
class Layout:
    """A launch's splits of k, ring stages and bytes of dynamic shared memory."""

    num_splits: int
    num_stages: int
    shared_bytes: int

    @classmethod
    def of(cls, gpu: Gpu, n: int, weight: Matrix, *, has_changes: bool = False) -> "Layout":
        """Return the layout for n activation rows, which must fit, with or without `RowChanges`."""
        num_splits = _num_splits(gpu, n, weight, has_changes=has_changes) or 1
        x_bytes, stage_bytes = n * _row_bytes(n, weight, num_splits), _stage_bytes(weight)
        room = gpu.block_shared_bytes - _static_bytes(n, has_changes=has_changes) - x_bytes
        num_stages = min(_RING_STAGES, room // stage_bytes)
        # More than a third of a multiprocessor's shared memory: two blocks share it, never three.
        # The blocks of a kernel replace those of the kernel before the last one by one, so every
        # multiprocessor holds one block of each, even if there are more blocks than work.
        shared_bytes = max(num_stages * stage_bytes + x_bytes, gpu.sm_shared_bytes // 3)
        return cls(num_splits, num_stages, shared_bytes)


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
        return M_TILE * (_CHUNK_BYTES + 64)
    tiles = M_TILE // TILE_ROWS * _CHUNK_BYTES // 64
    return tiles * tile_bytes(weight.scheme, weight.group_size)


def _num_splits(gpu: Gpu, n: int, weight: Matrix, *, has_changes: bool) -> int | None:
    """Return the least number of splits of k with room for a few stages beside the activations.

    None if even `MAX_SPLITS` are too few.
    """
    min_stages = 2 if isinstance(weight, PackedMatrix) and weight.group_size else 3
    static = _static_bytes(n, has_changes=has_changes)
    room = gpu.block_shared_bytes - static - min_stages * _stage_bytes(weight)
    counts = range(1, MAX_SPLITS + 1)
    return next((s for s in counts if n * _row_bytes(n, weight, s) <= room), None)


def _row_bytes(n: int, weight: Matrix, num_splits: int) -> int:
    """Return the bytes of an activation row's split in shared memory.

    They include the sums over groups, and of an int8-plane activation the scales.
    """
    itemsize, k = weight.dtype.itemsize, weight.shape[1]
    if not isinstance(weight, PackedMatrix):
        return _padded(min(k, _split_columns(k, num_splits)) * itemsize)
    k = padded_columns(weight.scheme, k)
    group_size = weight.group_size or TILE_COLUMNS[weight.scheme]
    columns = min(k, _split_columns(k, num_splits))
    if n == 1 and weight.scheme != "FP8" and itemsize == 2:
        return 2 * _padded(columns) + 8 * (columns // group_size | 1)
    group_bytes = 4 * (columns // group_size | 1) if weight.group_size else 0
    return _padded(columns * itemsize) + group_bytes


def _split_columns(k: int, num_splits: int) -> int:
    return ceil(ceil(k / num_splits) / _SPLIT_COLUMNS) * _SPLIT_COLUMNS


def _padded(num_bytes: int) -> int:
    """Return the bytes from one row to the next, padded so that rows begin in different banks."""
    return ceil(num_bytes / 128) * 128 + 64
