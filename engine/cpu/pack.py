"""Pack quantized matrices into the tiles that the native kernels read (kernels/pack.h)."""

import ctypes
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, byref, c_float, c_int, c_void_p

import numpy as np
import torch
from torch import Tensor

from swiftchat.engine.api.tile_layout import TileLayout
from swiftchat.engine.cpu.large_pages import LargePages
from swiftchat.engine.cpu.matrices import TiledMatrix
from swiftchat.engine.cpu.native import TILE_ROWS, Matrix, PackError, PackSource
from swiftchat.engine.cpu.pack_source import Source, Tiled, array_source, block_source
from swiftchat.errors import BadModelFile
from swiftchat.weights.quantization.scheme import GgufBlocks

_THREAD_BYTES = 1 << 20  # of tiles that a thread packs at a time


class _TableOverflow(Exception):
    """A scale or minimum is too large for fp16."""


class Packer:
    """Packs matrices into memory in large pages, with `num_threads` threads.

    With `exact` scales and minimums keep fp32 unless fp16 holds them; else they are rounded to
    fp16, by at most 2^-11 of each, and keep fp32 only if not all are in fp16's normal range, maybe
    times a power of two.
    """

    def __init__(self, library: ctypes.CDLL, num_threads: int) -> None:
        _declare_functions(library)
        self._library = library
        self._num_threads = num_threads
        self._pages = LargePages()

    def pack(self, parts: Sequence[Tiled], *, exact: bool) -> list[TiledMatrix] | None:
        """Pack the parts one below the other; neighbors of one layout become one matrix.

        Rows of two parts never share a tile. Returns None if tiles cannot have a part's groups.
        """
        sources = []
        for part in parts:
            source = array_source(part, exact=exact)
            if source is None:
                return None
            sources.append(source)
        return [self._pack_run(run) for run in _runs(sources)]

    def pack_blocks(
        self,
        parts: Sequence[GgufBlocks],
        *,
        on_packed: Callable[[], None] = lambda: None,
    ) -> list[TiledMatrix]:
        """As `pack`, for types in `BLOCK_TYPES`, whose scales and minimums all stay exact.

        Calls `on_packed` after each megabyte, on any thread. Raises `BadModelFile` if a scale is
        infinite or NaN.
        """
        sources = [block_source(part) for part in parts]
        return [self._pack_run(run, on_packed) for run in _runs(sources)]

    def reordered(self, matrix: TiledMatrix, order: Tensor) -> TiledMatrix:
        """Return a copy whose row i is row `order[i]`; raises `ValueError` for other numbers."""
        if len(order) and not 0 <= int(order.min()) <= int(order.max()) < matrix.rows:
            raise ValueError(f"an order of {matrix.rows} rows has other numbers")
        scale = None if matrix.row_scale is None else matrix.row_scale[order]
        tiles = self._tiles(matrix.layout, len(order))
        moved = TiledMatrix(matrix.layout, len(order), tiles, scale)
        rows = order.to(torch.int32).contiguous()

        def move(first_tile: int, num_tiles: int) -> None:
            self._library.reorder_tiles(
                byref(matrix.struct), rows.data_ptr(), byref(moved.struct), first_tile, num_tiles
            )

        self._for_tiles(move, moved.layout, moved.rows)
        return moved

    def _pack_run(
        self, sources: Sequence[Source], on_packed: Callable[[], None] = lambda: None
    ) -> TiledMatrix:
        try:
            return self._packed(sources, on_packed)
        except _TableOverflow:
            return self._packed([source.widened for source in sources], on_packed)

    def _packed(self, sources: Sequence[Source], on_packed: Callable[[], None]) -> TiledMatrix:
        layout, multiplier = sources[0].layout, sources[0].multiplier
        num_rows = sum(source.rows for source in sources)
        scales = [source.row_scale for source in sources if source.row_scale is not None]
        row_scale = torch.from_numpy(np.concatenate(scales)) if scales else None
        if multiplier != 1:
            row_scale = torch.full((num_rows,), 1 / multiplier)
        packed = TiledMatrix(layout, num_rows, self._tiles(layout, num_rows), row_scale)
        first_row = 0
        for source in sources:
            self._pack_source(source, packed, first_row // TILE_ROWS, on_packed)
            first_row += source.rows
        return packed

    def _pack_source(
        self, source: Source, packed: TiledMatrix, first: int, on_packed: Callable[[], None]
    ) -> None:
        """Pack into the tiles from `first` on."""

        def pack(first_tile: int, num_tiles: int) -> None:
            row, to_col, error = first_tile * TILE_ROWS, 0, 0
            for start, stop in source.spans:
                rows_and_columns = row, start, stop - start
                tiles = first + first_tile, num_tiles, to_col
                error |= self._library.pack_tiles(
                    byref(source.struct),
                    *rows_and_columns,
                    byref(packed.struct),
                    *tiles,
                    source.multiplier,
                )
                to_col += stop - start
            if error & PackError.NOT_FINITE:
                name = source.tensor_name
                raise BadModelFile(f"tensor {name}: expected finite scales, found NaN or infinity")
            if error & PackError.OVERFLOW:
                raise _TableOverflow
            on_packed()

        self._for_tiles(pack, packed.layout, source.rows)

    def _tiles(self, layout: TileLayout, rows: int) -> Tensor:
        tiles = self._pages.allocate(layout.nbytes(rows))
        return tiles.view(-1, layout.tile_bytes)

    def _for_tiles(self, work: Callable[[int, int], None], layout: TileLayout, rows: int) -> None:
        """Call `work(first_tile, num_tiles)` until all tiles of so many rows are done."""
        num_tiles = -(-rows // TILE_ROWS)
        step = max(1, _THREAD_BYTES // layout.tile_bytes)
        firsts = range(0, num_tiles, step)
        counts = [min(step, num_tiles - first) for first in firsts]
        if self._num_threads == 1 or len(firsts) < 2:
            for first, count in zip(firsts, counts, strict=True):
                work(first, count)
            return
        # Calls of the library do not hold the GIL.
        with ThreadPoolExecutor(self._num_threads) as threads:
            for _ in threads.map(work, firsts, counts):
                pass


def _runs(sources: Sequence[Source]) -> list[list[Source]]:
    """Split into runs of one layout; each part of a run but the last has whole tiles."""
    runs = [[sources[0]]]
    for before, source in itertools.pairwise(sources):
        is_same = source.layout == before.layout and source.multiplier == before.multiplier
        if is_same and before.rows % TILE_ROWS == 0:
            runs[-1].append(source)
        else:
            runs.append([source])
    return runs


def _declare_functions(library: ctypes.CDLL) -> None:
    source, matrix = POINTER(PackSource), POINTER(Matrix)
    library.pack_tiles.argtypes = [source, c_int, c_int, c_int, matrix, *[c_int] * 3, c_float]
    library.pack_tiles.restype = c_int
    library.reorder_tiles.argtypes = [matrix, c_void_p, matrix, c_int, c_int]
    library.reorder_tiles.restype = None
