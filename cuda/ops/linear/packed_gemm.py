"""Matmul of many rows with a packed weight on tensor cores: `kernels/linear/packed_gemm.cu`."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.packed_layout import PACKED_SCHEMES, TILE_ROWS, tile_bytes
from swiftchat.cuda.packed_matrix import PackedMatrix, storage_macros
from swiftchat.cuda.tensor_map import tensor_map

_WARP_ROWS, _UNIT_COLUMNS = 16, 128  # weight rows of a consumer warp, columns of a work unit
_WGMMA_ROWS = (32, 64, 96, 128, 192, 256)  # activation rows of a tile
_MMA_ROWS = (32, 64, 96, 128)
_CLUSTER = {"WGMMA_PATH": 2, "MMA_PATH": 1}  # blocks that share activations
# Above this, dequantizing for cuBLAS costs less than cuBLAS gains; not measured.
_MAX_MMA_ROWS = 64
_WARPS = 8  # consumers of a block
# With few activation rows twice as many hide more latency, if the matrix has work for them.
_MORE_WARPS, _FEW_ROWS, _MIN_UNITS = 16, 64, 2
_MOST_UNEVEN = 1.1  # time of the longest part of the work, relative to that of an even division
_PRODUCER_THREADS = 128
_MAX_STAGES = 8
_STATIC_BYTES = 2048  # alignment, barriers


PATHS = {"WGMMA_PATH": _WGMMA_ROWS, "MMA_PATH": _MMA_ROWS}


def numbers_of_warps(rows: int, path: str) -> tuple[int, ...]:
    """Return the consumer warps that a block with tiles of so many rows may have."""
    return (_WARPS, _MORE_WARPS) if rows <= _FEW_ROWS and path == "WGMMA_PATH" else (_WARPS,)


def packed_gemm_fits(gpu: Gpu, n: int, weight: PackedMatrix) -> bool:
    """Return whether `packed_gemm` is the fastest way to multiply n > 16 rows with this weight."""
    has_wgmma = _path(gpu) == "WGMMA_PATH"
    most = PACKED_SCHEMES[weight.scheme].most_gemm_rows if has_wgmma else _MAX_MMA_ROWS
    return n <= most and weight.dtype.itemsize == 2


class GemmWorkspace:
    """Partial sums of tiles that several blocks share; reusable after every call."""

    def __init__(self, gpu: Gpu) -> None:
        largest = _WARPS * _WARP_ROWS * max(PATHS[_path(gpu)])
        self.partial_sums = torch.empty(2 * gpu.num_sms * largest, device=gpu.device)
        self.counters = torch.zeros(gpu.num_sms, dtype=torch.int32, device=gpu.device)


def _num_clusters(num_tiles: int, columns: int, most: int) -> int:
    """Return how many of the clusters divide the work evenly, `columns` units for each tile.

    A few less than all, if each then has a part of one tile: parts of two cost the exchange of two.
    """
    each = most // num_tiles  # clusters of a tile
    if each and -(-columns // each) * most <= _MOST_UNEVEN * columns * num_tiles:
        return num_tiles * min(each, columns)
    return min(most, num_tiles * columns)


@dataclass(frozen=True)
class _Layout:
    """A launch's activation rows of a tile, consumer warps, blocks, ring stages, shared memory."""

    rows: int
    warps: int
    unit_bytes: int  # of a row block
    blocks: int
    w_stages: int
    x_stages: int
    shared_bytes: int

    @classmethod
    def of(cls, gpu: Gpu, n: int, weight: PackedMatrix, path: str) -> "_Layout":
        m, k = weight.shape
        sizes = PATHS[path]
        tiles = -(-n // sizes[-1])
        rows = next(size for size in sizes if size * tiles >= n)
        clusters = gpu.num_sms // _CLUSTER[path]
        columns = -(-k // _UNIT_COLUMNS)

        def num_units(warps: int) -> int:
            return -(-m // (_CLUSTER[path] * warps * _WARP_ROWS)) * tiles * columns

        warps = numbers_of_warps(rows, path)[-1]
        if num_units(warps) < _MIN_UNITS * clusters:
            warps = _WARPS
        unit_bytes = (
            _UNIT_COLUMNS
            // PACKED_SCHEMES[weight.scheme].tile_columns
            * tile_bytes(weight.scheme, weight.group_size)
        )
        w_bytes = warps * _WARP_ROWS // TILE_ROWS * unit_bytes
        x_bytes = rows * 128 * (2 if rows <= _FEW_ROWS else 1)
        room = gpu.block_shared_bytes - _STATIC_BYTES
        w_stages = min(_MAX_STAGES, max(2, room * 5 // 8 // w_bytes))
        x_stages = min(_MAX_STAGES, (room - w_stages * w_bytes) // x_bytes)
        shared_bytes = 1024 + w_stages * w_bytes + x_stages * x_bytes
        num_tiles = num_units(warps) // columns
        blocks = _num_clusters(num_tiles, columns, clusters) * _CLUSTER[path]
        return cls(rows, warps, unit_bytes, blocks, w_stages, x_stages, shared_bytes)


def _path(gpu: Gpu) -> str:
    return "WGMMA_PATH" if gpu.capability == (9, 0) else "MMA_PATH"


def packed_gemm(
    gpu: Gpu,
    x: Tensor,
    weight: PackedMatrix,
    out: Tensor,
    workspace: GemmWorkspace,
    *,
    bias: Tensor | None = None,
    x_scale: Tensor | None = None,
    path: str | None = None,
) -> None:
    """Write x [n, k] · weightᵀ [k, m] + bias [m] to out [n, m], all of the weight's 16-bit dtype.

    The rows of x may be multiplied by `x_scale` fp32 [n]. Weights in groups are rounded to the
    dtype first, as by `dequantize`. A row's result does not depend on the other rows of a call
    with as many rows. `path` is WGMMA_PATH, which needs capability 9.0, or MMA_PATH.
    """
    n, (m, k), dtype = len(x), weight.shape, weight.dtype
    if dtype.itemsize != 2:
        raise ValueError(f"packed_gemm does not multiply {dtype}")
    path = path or _path(gpu)
    if n == 0 or m == 0:
        return
    layout = _Layout.of(gpu, n, weight, path)
    words = weight.tiles.view(torch.int64)  # a box has at most 256 elements of a row
    block_tiles = layout.warps * _WARP_ROWS // TILE_ROWS
    kernel = gpu.kernel(
        "packed_gemm",
        **storage_macros(weight),
        BLOCK_N=layout.rows,
        CONSUMER_WARPS=layout.warps,
        PATH=path,
    )
    kernel(
        layout.blocks,
        layout.warps * 32 + _PRODUCER_THREADS,
        shared_bytes=layout.shared_bytes,
        num_bytes=weight.nbytes + x.nbytes + out.nbytes,
        x_map=partial(tensor_map, gpu, x, layout.rows // _CLUSTER[path]),
        weight_map=partial(tensor_map, gpu, words, block_tiles, layout.unit_bytes),
        x=x,
        tiles=weight.tiles,
        row_scale=weight.row_scale,
        bias=bias,
        x_scale=x_scale,
        out=out,
        m=m,
        k=k,
        w_stages=layout.w_stages,
        x_stages=layout.x_stages,
        partial_sums=workspace.partial_sums,
        counters=workspace.counters,
    )
