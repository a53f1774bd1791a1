"""Call the matmul kernels on arrays that end at guard pages; only the results may be written."""

import ctypes
from ctypes import byref, c_void_p

import torch
from torch import Tensor

from swiftchat.engine.cpu.native import TILE_ROWS, Matrix
from tests.support.native.activations import Activations, quantized_rows
from tests.support.native.guarded import before_guard_page
from tests.support.native.libraries import load
from tests.support.native.ops import aligned, float_matrix
from tests.support.native.tiles import Tiles

# Vectors that a GEMV takes at once.
MAX_GEMV_VECTORS = 8


def gemv_tiles(
    variant: str, tiles: Tiles, x: Activations, first_tile: int = 0, num_tiles: int | None = None
) -> Tensor:
    """Return y [n, 16 * num_tiles]."""
    num_tiles = _tiles_from(tiles.matrix, first_tile) if num_tiles is None else num_tiles
    matrix, _memory = _guarded(tiles)
    y = _Results(len(x.integers), num_tiles * TILE_ROWS)
    rows = quantized_rows(x)
    kernel = _procedure(variant, "gemv_tiles")
    kernel(byref(matrix), first_tile, num_tiles, byref(rows), y.address, y.stride, None)
    return y.checked()


def gemm_tiles(
    variant: str,
    tiles: Tiles,
    x: Activations,
    first_tile: int = 0,
    num_tiles: int | None = None,
    first_vector: int = 0,
    num_vectors: int | None = None,
) -> Tensor:
    """Return y [num_vectors, 16 * num_tiles]."""
    num_tiles = _tiles_from(tiles.matrix, first_tile) if num_tiles is None else num_tiles
    num_vectors = len(x.integers) - first_vector if num_vectors is None else num_vectors
    matrix, _memory = _guarded(tiles)
    y = _Results(num_vectors, num_tiles * TILE_ROWS)
    rows, panel = quantized_rows(x), _panel(variant)
    vectors = (byref(rows), first_vector, num_vectors)
    kernel = _procedure(variant, "gemm_tiles")
    kernel(byref(matrix), first_tile, num_tiles, *vectors, y.address, y.stride, _address(panel))
    return y.checked()


def gemv_float(
    variant: str, matrix: Matrix, x: Tensor, first_row: int = 0, num_rows: int | None = None
) -> Tensor:
    """Return y fp32 [n, num_rows]."""
    num_rows = matrix.rows - first_row if num_rows is None else num_rows
    x = before_guard_page(x)
    y = _Results(len(x), num_rows)
    kernel = _procedure(variant, "gemv_float")
    next_weights = c_void_p(matrix.data)
    vectors = (_address(x), len(x))
    kernel(byref(matrix), first_row, num_rows, *vectors, y.address, y.stride, next_weights)
    return y.checked()


def gemm_float(
    variant: str, matrix: Matrix, x: Tensor, first_tile: int = 0, num_tiles: int | None = None
) -> Tensor:
    """Return y fp32 [n, rows from first_tile]; with bf16 x through the GEMM of bf16."""
    num_tiles = _tiles_from(matrix, first_tile) if num_tiles is None else num_tiles
    is_bf16 = x.dtype == torch.bfloat16
    kernel = _procedure(variant, "gemm_bf16" if is_bf16 else "gemm_float")
    rows, panel = before_guard_page(_bf16_rows(x) if is_bf16 else x), _panel(variant)
    y = _Results(len(x), min(matrix.rows - first_tile * TILE_ROWS, num_tiles * TILE_ROWS))
    vectors = (_address(rows), len(x))
    kernel(byref(matrix), first_tile, num_tiles, *vectors, y.address, y.stride, _address(panel))
    return y.checked()


def guarded_float_matrix(tensor: Tensor, gap: int = 0) -> tuple[Matrix, Tensor]:
    """Describe a copy of a float tensor [rows, cols]; return also what the caller keeps alive.

    In memory `gap` elements with NaN follow each row but the last.
    """
    rows, cols = tensor.shape
    longer = torch.full((rows, cols + gap), torch.nan).to(tensor.dtype)
    longer[:, :cols] = tensor
    memory = before_guard_page(longer.flatten()[: rows * (cols + gap) - gap])
    return float_matrix(memory.as_strided((rows, cols), (cols + gap, 1))), memory


class _Results:
    """Memory for y [n, width] with space between the rows, in which nothing may be written."""

    def __init__(self, num_vectors: int, width: int) -> None:
        self._memory = aligned(torch.full((num_vectors + 1, width + 3), 7.0))
        self._shape = (num_vectors, width)
        self.stride = width + 3
        self.address = _address(self._memory)

    def checked(self) -> Tensor:
        num_vectors, width = self._shape
        assert (self._memory[num_vectors:] == 7).all()
        assert (self._memory[:, width:] == 7).all()
        return self._memory[:num_vectors, :width].clone()


def _procedure(variant: str, name: str) -> "ctypes._NamedFuncPointer":
    function = getattr(load(variant), name)
    function.restype = None
    return function  # type: ignore[no-any-return]


def _address(tensor: Tensor) -> c_void_p:
    return c_void_p(tensor.data_ptr())


def _tiles_from(matrix: Matrix, first_tile: int) -> int:
    return -(-matrix.rows // TILE_ROWS) - first_tile


def _guarded(tiles: Tiles) -> tuple[Matrix, list[Tensor]]:
    """Describe a copy of a tiled matrix; return also what the caller keeps alive."""
    packed, row_scale = memory = [before_guard_page(tensor) for tensor in tiles.tensors]
    matrix = Matrix.from_buffer_copy(tiles.matrix)
    matrix.data = packed.data_ptr()
    if matrix.row_scale:
        matrix.row_scale = row_scale.data_ptr()
    return matrix, memory


def _panel(variant: str) -> Tensor:
    """Return memory for unpacked weights."""
    return aligned(torch.full((load(variant).gemm_panel_bytes(None, 0) // 4,), torch.nan))


def _bf16_rows(x: Tensor) -> Tensor:
    """Copy rows to the distance of `bf16_row_stride`.

    A row of odd length has a zero after it. All other memory between rows is NaN, because the
    kernel must not use it.
    """
    cols = x.shape[1]
    stride = -(-cols // 32) * 32
    stride += 0 if stride % 1024 else 32
    rows = torch.full((len(x), stride), torch.nan, dtype=torch.bfloat16)
    rows[:, :cols] = x
    if cols % 2:
        rows[:, cols] = 0
    return rows
