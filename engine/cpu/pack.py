"""Pack quantized matrices into the tiles that the native kernels read (kernels/pack.h)."""

import ctypes
import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swiftchat.engine.cpu.matrices import TiledMatrix, TileLayout
from swiftchat.engine.cpu.structures import BLOCK_COLS, TILE_ROWS, Format, Matrix
from swiftchat.engine.load.large_pages import LargePages
from swiftchat.errors import BadModelFile
from swiftchat.weights.quantization.scheme import GgufBlocks, Int4, Int8, Int8Groups

Spans = Sequence[tuple[int, int]]

_THREAD_BYTES = 1 << 20  # of tiles that a thread packs at a time
_SMALLEST_NORMAL, _LARGEST = 2.0**-14, 65504.0  # of fp16
_LARGEST_EXPONENT = 14  # of the largest scale, if scales are multiplied by a power of two
_MAX_SHIFT = 100  # that power's exponent; fp32 holds it and its reciprocal
_INT4_CENTER, _INT8_CENTER = 8, 128


class SourceKind(IntEnum):
    INT4 = 0
    INT8 = 1
    UINT8 = 2
    Q4_0 = 3
    Q4_1 = 4
    Q5_0 = 5
    Q5_1 = 6
    Q8_0 = 7
    IQ4_NL = 8
    Q2_K = 9
    Q3_K = 10
    Q4_K = 11
    Q5_K = 12
    Q6_K = 13
    IQ4_XS = 14


class PackSource(ctypes.Structure):
    _fields_ = (
        ("kind", c_int32),
        ("rows", c_int32),
        ("cols", c_int32),
        ("group_cols", c_int32),
        ("stride", c_int64),
        ("values", c_void_p),
        ("table_stride", c_int64),
        ("scale", c_void_p),
        ("minimum", c_void_p),
    )


class _Range(NamedTuple):
    """Bounds of the absolute values of scales and minimums, zeros apart.

    `all_fp16`: each of them is exactly an fp16 number.
    """

    smallest: float
    largest: float
    all_fp16: bool


def _declare_functions(library: ctypes.CDLL) -> None:
    """Set the types of the functions of pack.c."""
    source, matrix = ctypes.POINTER(PackSource), ctypes.POINTER(Matrix)
    library.pack_tiles.argtypes = [source, c_int, c_int, c_int, matrix, *[c_int] * 3, c_float]
    library.pack_tiles.restype = c_int
    library.scale_range.argtypes = [source, c_int, c_int, *[ctypes.POINTER(c_float)] * 2]
    library.scale_range.restype = None
    library.reorder_tiles.argtypes = [matrix, c_void_p, matrix, c_int, c_int]
    library.reorder_tiles.restype = None


def block_layout(type_name: str, cols: int) -> TileLayout:
    """Return the layout of a matrix of ggml blocks of one of `BLOCK_TYPES`.

    Its tables are fp16, which some matrices turn out not to fit.
    """
    format, group_cols, has_minimum = _BLOCK_LAYOUTS[type_name]
    return TileLayout(format, cols, group_cols, has_minimum)


_BLOCK_LAYOUTS = {
    "Q4_0": (Format.INT4, 32, False),
    "Q4_1": (Format.INT4, 32, True),
    "Q5_0": (Format.INT8, 32, False),
    "Q5_1": (Format.INT8, 32, True),
    "Q8_0": (Format.INT8, 32, False),
    "IQ4_NL": (Format.INT8, 32, False),
    "Q2_K": (Format.INT4, 16, True),
    "Q3_K": (Format.INT4, 16, False),
    "Q4_K": (Format.INT4, 32, True),
    "Q5_K": (Format.INT8, 32, True),
    "Q6_K": (Format.INT8, 16, False),
    "IQ4_XS": (Format.INT8, 32, False),
}
BLOCK_TYPES = frozenset(_BLOCK_LAYOUTS)
# The largest integer that a block's fp16 scales are multiplied by; without, they are the tables.
_LARGEST_FACTOR = {"Q2_K": 15, "Q3_K": 32, "Q4_K": 63, "Q5_K": 63, "Q6_K": 128, "IQ4_XS": 32}
_FP16_RANGE = _Range(1.0, 1.0, all_fp16=True)


@dataclass(frozen=True)
class _Source:
    """A matrix to pack: where it is, and its layout with fp16 tables.

    `spans` are the columns. `table_range` None is found by a scan. `references` own the memory that
    `struct` points to.
    """

    struct: PackSource
    layout: TileLayout
    spans: Spans
    row_scale: npt.NDArray[np.float32] | None
    table_range: _Range | None
    tensor_name: str
    references: Sequence[object]

    @property
    def rows(self) -> int:
        return int(self.struct.rows)


class Packer:
    """Packs matrices into memory in large pages, with `num_threads` threads."""

    def __init__(self, library: ctypes.CDLL, num_threads: int) -> None:
        _declare_functions(library)
        self._library = library
        self._num_threads = num_threads
        self._pages = LargePages()

    def pack(
        self, parts: Sequence[Int4 | Int8 | Int8Groups], *, exact: bool
    ) -> list[TiledMatrix] | None:
        """Pack the parts one below the other; neighbors of one layout become one matrix.

        With `exact` scales and minimums keep fp32 unless fp16 holds them; else they are rounded to
        fp16, by at most 2^-11 of each, and keep fp32 only if one is below fp16's normal range.
        Rows of two parts never share a tile. Returns None if there is no layout for a part.
        """
        sources = []
        for part in parts:
            source = _array_source(part)
            if source is None:
                return None
            sources.append(source)
        return [self._pack_run(run, exact) for run in _runs(sources)]

    def pack_blocks(self, parts: Sequence[GgufBlocks], *, exact: bool) -> list[TiledMatrix]:
        """As `pack`, for types in `BLOCK_TYPES`.

        Raises `BadModelFile` if a scale is infinite or NaN.
        """
        return [self._pack_run(run, exact) for run in _runs([_block_source(p) for p in parts])]

    def reordered(self, matrix: TiledMatrix, order: Tensor) -> TiledMatrix:
        """Return a copy whose row i is row `order[i]`; raises `ValueError` for other numbers."""
        if len(order) and not 0 <= int(order.min()) <= int(order.max()) < matrix.rows:
            raise ValueError(f"an order of {matrix.rows} rows has other numbers")
        scale = None if matrix.row_scale is None else matrix.row_scale[order]
        moved = TiledMatrix(
            matrix.layout, len(order), self._tiles(matrix.layout, len(order)), scale
        )
        rows = order.to(torch.int32).contiguous()

        def move(first_tile: int, num_tiles: int) -> None:
            self._library.reorder_tiles(
                byref(matrix.struct), rows.data_ptr(), byref(moved.struct), first_tile, num_tiles
            )

        self._for_tiles(move, moved.layout, moved.rows)
        return moved

    def _pack_run(self, sources: Sequence[_Source], exact: bool) -> TiledMatrix:
        wide, factor = self._tables(sources, exact)
        layout = replace(sources[0].layout, wide_tables=wide)
        num_rows = sum(source.rows for source in sources)
        scales = [source.row_scale for source in sources if source.row_scale is not None]
        row_scale = torch.from_numpy(np.concatenate(scales)) if scales else None
        if factor != 1:
            row_scale = torch.full((num_rows,), 1 / factor)
        packed = TiledMatrix(layout, num_rows, self._tiles(layout, num_rows), row_scale)
        first_row = 0
        for source in sources:
            self._pack_source(source, packed, first_row, factor)
            first_row += source.rows
        return packed

    def _pack_source(
        self, source: _Source, packed: TiledMatrix, first_row: int, factor: float
    ) -> None:
        begin = first_row // TILE_ROWS

        def pack(first_tile: int, num_tiles: int) -> None:
            to_col, row = 0, first_tile * TILE_ROWS
            for start, stop in source.spans:
                error = self._library.pack_tiles(
                    *(byref(source.struct), row, start, stop - start),
                    *(byref(packed.struct), begin + first_tile, num_tiles, to_col, factor),
                )
                if error:
                    raise BadModelFile(
                        f"tensor {source.tensor_name}: expected finite scales, "
                        "found NaN or infinity"
                    )
                to_col += stop - start

        self._for_tiles(pack, packed.layout, source.rows)

    def _tables(self, sources: Sequence[_Source], exact: bool) -> tuple[bool, float]:
        """Return whether tables are fp32, and the power of two that they are multiplied by."""
        ranges = [source.table_range or self._scan(source) for source in sources]
        if all(each.all_fp16 for each in ranges):
            return False, 1.0
        smallest = min(each.smallest for each in ranges)
        largest = max(each.largest for each in ranges)
        if exact:
            return True, 1.0
        if smallest >= _SMALLEST_NORMAL and largest <= _LARGEST:
            return False, 1.0
        shift = _LARGEST_EXPONENT + 1 - math.frexp(largest)[1]
        if abs(shift) > _MAX_SHIFT or math.ldexp(smallest, shift) < _SMALLEST_NORMAL:
            return True, 1.0
        return False, math.ldexp(1.0, shift)

    def _scan(self, source: _Source) -> _Range:
        """Find bounds of the tables of blocks whose scales are multiplied by integers."""
        found: list[tuple[float, float]] = []

        def extend(first_tile: int, num_tiles: int) -> None:
            row, smallest, largest = first_tile * TILE_ROWS, c_float(), c_float()
            num_rows = min(source.rows - row, num_tiles * TILE_ROWS)
            self._library.scale_range(
                byref(source.struct), row, num_rows, byref(smallest), byref(largest)
            )
            found.append((smallest.value, largest.value))

        self._for_tiles(extend, source.layout, source.rows)
        smallest, largest = min(low for low, _ in found), max(high for _, high in found)
        factor = _LARGEST_FACTOR[SourceKind(source.struct.kind).name]
        return _Range(smallest, largest * factor, all_fp16=False)

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


def _runs(sources: Sequence[_Source]) -> list[list[_Source]]:
    """Split into runs of one layout; each part of a run but the last has whole tiles."""
    runs = [[sources[0]]]
    for before, source in itertools.pairwise(sources):
        is_scanned = source.table_range is None, before.table_range is None
        same_tables = is_scanned[0] == is_scanned[1]
        if source.layout == before.layout and same_tables and before.rows % TILE_ROWS == 0:
            runs[-1].append(source)
        else:
            runs.append([source])
    return runs


def _block_source(matrix: GgufBlocks) -> _Source:
    layout = block_layout(matrix.type_name, matrix.columns)
    blocks = matrix.blocks
    struct = PackSource(
        kind=SourceKind[matrix.type_name],
        rows=len(blocks),
        cols=max(stop for _, stop in matrix.spans),
        stride=blocks.strides[0],
        values=blocks.ctypes.data,
    )
    is_scanned = matrix.type_name in _LARGEST_FACTOR
    table_range = None if is_scanned else _FP16_RANGE
    return _Source(struct, layout, matrix.spans, None, table_range, matrix.tensor_name, (blocks,))


def _array_source(matrix: Int4 | Int8 | Int8Groups) -> _Source | None:
    cols = matrix.values.shape[1]
    if isinstance(matrix, Int8):
        layout = TileLayout(Format.INT8, cols, 0, has_minimum=False)
        row_scale = np.ascontiguousarray(matrix.scale, np.float32)
        struct = _array_struct(SourceKind.INT8, matrix.values, cols)
        return _Source(struct, layout, [(0, cols)], row_scale, _FP16_RANGE, "", (matrix,))
    is_int4 = isinstance(matrix, Int4)
    cols = 2 * cols if is_int4 else cols
    num_groups = matrix.scale.shape[1]
    group_size = cols // num_groups
    group_cols = _group_cols(group_size, num_groups)
    if group_cols is None:
        return None
    stored_center = _INT4_CENTER if is_int4 else _INT8_CENTER
    has_minimum = bool((matrix.zero_point != stored_center).any())
    # The values of tiles with minimums are INT4 from 0 to 15, or INT8 from -128 to 127.
    offset = matrix.zero_point - (0 if is_int4 else _INT8_CENTER)
    minimum = np.ascontiguousarray(-matrix.scale * offset, np.float32) if has_minimum else None
    scale = np.ascontiguousarray(matrix.scale, np.float32)
    struct = _array_struct(SourceKind.INT4 if is_int4 else SourceKind.UINT8, matrix.values, cols)
    struct.group_cols, struct.table_stride = group_size, num_groups
    struct.scale = scale.ctypes.data
    struct.minimum = None if minimum is None else minimum.ctypes.data
    layout = TileLayout(
        Format.INT4 if is_int4 else Format.INT8, cols, group_cols, has_minimum=has_minimum
    )
    found = _range_of(scale if minimum is None else np.stack([scale, minimum]))
    return _Source(struct, layout, [(0, cols)], None, found, "", (matrix, scale, minimum))


def _range_of(tables: npt.NDArray[np.float32]) -> _Range:
    sizes = np.abs(tables)
    smallest = sizes.min(initial=np.inf, where=sizes != 0)
    with np.errstate(over="ignore"):
        narrow = tables.astype(np.float16)
    return _Range(
        float(smallest),
        float(sizes.max(initial=0)),
        bool((narrow.astype(np.float32) == tables).all()),
    )


def _array_struct(kind: SourceKind, values: npt.NDArray[Any], cols: int) -> PackSource:
    assert values.strides[1] == 1
    return PackSource(
        kind=kind,
        rows=len(values),
        cols=cols,
        stride=values.strides[0],
        values=values.ctypes.data,
    )


def _group_cols(group_size: int, num_groups: int) -> int | None:
    """Return the columns of a group in tiles: 16 or a multiple of 32; None: they do not fit."""
    if num_groups == 1:
        return -(-group_size // BLOCK_COLS) * BLOCK_COLS
    if group_size % BLOCK_COLS == 0:
        return group_size
    return 16 if group_size % 16 == 0 else None
