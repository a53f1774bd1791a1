"""GEMV of tiled and float matrices with a few vectors, against exact arithmetic."""

from ctypes import byref, c_void_p
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swiftchat.engine.cpu.structures import TILE_ROWS, Format, Matrix
from tests.support.activations import Activations, in_order, quantized_rows, random_activations
from tests.support.cpu_libraries import load
from tests.support.guarded import before_guard_page
from tests.support.native_ops import aligned, each_variant, float_matrix
from tests.support.tiles import Tiles, random_tiles

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)
LAYOUTS = [
    (Format.INT4, 32, False, False),
    (Format.INT4, 32, True, False),
    (Format.INT4, 0, False, False),
    (Format.INT4, 128, False, False),
    (Format.INT4, 64, True, True),
    (Format.INT4, 16, False, True),
    (Format.INT4, 16, True, False),
    (Format.INT8, 32, False, False),
    (Format.INT8, 0, False, False),
    (Format.INT8, 16, False, False),
    (Format.INT8, 16, True, True),
    (Format.INT8, 256, True, False),
]


def gemv_tiles(
    variant: str, tiles: Tiles, x: Activations, first_tile: int = 0, num_tiles: int | None = None
) -> Tensor:
    """Return y [n, 16 * num_tiles]; the matrix ends at a guard page, and only y is written."""
    library = load(variant)
    if num_tiles is None:
        num_tiles = -(-tiles.matrix.rows // TILE_ROWS) - first_tile
    packed, row_scale = map(before_guard_page, tiles.tensors)
    matrix = Matrix.from_buffer_copy(tiles.matrix)
    matrix.data = packed.data_ptr()
    if matrix.row_scale:
        matrix.row_scale = row_scale.data_ptr()
    num_vectors, width = len(x.integers), num_tiles * TILE_ROWS
    y = torch.full((num_vectors + 1, width + 3), 7.0)
    library.gemv_tiles.restype = None
    library.gemv_tiles(
        byref(matrix),
        first_tile,
        num_tiles,
        byref(quantized_rows(x)),
        c_void_p(y.data_ptr()),
        width + 3,
        None,
    )
    assert (y[num_vectors:] == 7).all() and (y[:, width:] == 7).all()
    return y[:num_vectors, :width].clone()


def gemv_float(
    variant: str,
    weights: Tensor,
    x: Tensor,
    first_row: int = 0,
    num_rows: int | None = None,
    row_scale: Tensor | None = None,
) -> Tensor:
    """Return y [n, num_rows]; the matrix and x end at guard pages, and only y is written."""
    library = load(variant)
    num_rows = len(weights) - first_row if num_rows is None else num_rows
    guarded, guarded_x = before_guard_page(weights), before_guard_page(x)
    matrix = float_matrix(guarded)
    if row_scale is not None:
        row_scale = before_guard_page(row_scale)
        matrix.row_scale = row_scale.data_ptr()
    y = torch.full((len(x) + 1, num_rows + 3), 7.0)
    library.gemv_float.restype = None
    library.gemv_float(
        byref(matrix),
        first_row,
        num_rows,
        c_void_p(guarded_x.data_ptr()),
        len(x),
        c_void_p(y.data_ptr()),
        num_rows + 3,
        c_void_p(guarded.data_ptr()),
    )
    assert (y[len(x) :] == 7).all() and (y[:, num_rows:] == 7).all()
    return y[: len(x), :num_rows].clone()


@each_variant
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiles_follow_the_order_of_sums(
    variant: str, layout: tuple[Format, int, bool, bool]
) -> None:
    for rows, cols in ((16, 32), (41, 80), (70, 1110), (5, 7)):
        tiles = random_tiles(layout[0], rows, cols, *layout[1:])
        for num_vectors in range(1, 9):
            x = random_activations(num_vectors, cols)
            y = gemv_tiles(variant, tiles, x)
            assert torch.equal(y[:, :rows], in_order(tiles, x))


@each_variant
@settings(max_examples=25, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    rows=st.integers(1, 90),
    cols=st.integers(1, 700),
    num_vectors=st.integers(1, 8),
    row_scale=st.booleans(),
    seed=st.integers(0, 100),
)
def test_tiles_of_any_shape(
    variant: str,
    layout: tuple[Format, int, bool, bool],
    rows: int,
    cols: int,
    num_vectors: int,
    row_scale: bool,
    seed: int,
) -> None:
    tiles = random_tiles(layout[0], rows, cols, *layout[1:], seed=seed)
    dequantized = tiles.dequantized
    if not row_scale:
        dequantized = dequantized / tiles.tensors[1].double().unsqueeze(1)
        tiles.matrix.row_scale = None
    x = random_activations(num_vectors, cols, seed)
    y = gemv_tiles(variant, tiles, x)[:, :rows]
    assert torch.equal(y, in_order(tiles, x))
    # Each of the sums of a block is rounded four times: to fp32, times two scales, added.
    exact_x = x.dequantized[:, :cols]
    bound = exact_x.abs() @ dequantized.abs().T + exact_x.sum(1, keepdim=True).abs()
    blocks = x.scales.shape[1]
    torch.testing.assert_close(
        y.double(), exact_x @ dequantized.T, rtol=0, atol=float(bound.max()) * (blocks + 8) * 2**-24
    )


@each_variant
def test_a_vector_alone_and_some_tiles_give_the_same_bits(variant: str) -> None:
    tiles = random_tiles(Format.INT4, 16 * 9 + 5, 1040, 32, has_minimum=True)
    x = random_activations(8, 1040)
    together = gemv_tiles(variant, tiles, x)
    for v in range(8):
        one = replace(x, integers=x.integers[v : v + 1], scales=x.scales[v : v + 1])
        assert torch.equal(gemv_tiles(variant, tiles, one), together[v : v + 1])
    for first_tile, num_tiles in ((0, 1), (3, 4), (9, 1)):
        part = gemv_tiles(variant, tiles, x, first_tile, num_tiles)
        rows = slice(first_tile * TILE_ROWS, (first_tile + num_tiles) * TILE_ROWS)
        assert torch.equal(part, together[:, rows])


@each_variant
@pytest.mark.parametrize("format", [Format.INT4, Format.INT8])
def test_extreme_integers_do_not_overflow(variant: str, format: Format) -> None:
    """Also of planes of -128 and 127, which are larger than quantization makes them."""
    fill, weight = {Format.INT4: (0xFF, 15), Format.INT8: (0x80, -128)}[format]
    has_minimum = format == Format.INT4
    tiles = random_tiles(format, 16, 64, 32, has_minimum)
    tables = tiles.matrix.stride - 16 * (32 if format == Format.INT4 else 64)
    tiles.tensors[0].fill_(fill)
    # fp16 scales 1, minimums 0.
    tiles.tensors[0][:, :tables].view(torch.float16).fill_(1.0)
    if has_minimum:
        tiles.tensors[0][:, tables // 2 : tables] = 0
    tiles.matrix.row_scale = None
    for value in (-32640, -32512, 32512, 32639):
        x = random_activations(3, 64)
        x.integers.fill_(value)
        x.scales.fill_(1.0)
        y = gemv_tiles(variant, tiles, x)
        assert (y == float(64 * value * weight)).all()


@each_variant
def test_nan_of_one_vector_stays_there(variant: str) -> None:
    tiles = random_tiles(Format.INT8, 40, 100, 32)
    x = random_activations(3, 100)
    x.scales[1, 2] = torch.nan
    y = gemv_tiles(variant, tiles, x)[:, :40]
    assert y[1].isnan().all() and not y[0].isnan().any() and not y[2].isnan().any()


@each_variant
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 40),
    cols=st.integers(1, 700),
    num_vectors=st.integers(1, 8),
    row_scale=st.booleans(),
    seed=st.integers(0, 100),
)
def test_floats_of_any_shape(
    variant: str,
    dtype: torch.dtype,
    rows: int,
    cols: int,
    num_vectors: int,
    row_scale: bool,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(rows, cols, generator=generator).to(dtype)
    x = torch.randn(num_vectors, cols, generator=generator)
    scale = torch.rand(rows, generator=generator) + 0.5 if row_scale else None
    y = gemv_float(variant, weights, x, row_scale=scale)
    wide = weights.double() * (1.0 if scale is None else scale.double().unsqueeze(1))
    # Each product is rounded by itself and in the sums after it, of at most cols / 16 + 9 numbers.
    bound = (x.double().abs() @ wide.abs().T) * (cols / 16 + 11) * 2**-24
    assert ((y.double() - x.double() @ wide.T).abs() <= bound).all()


@each_variant
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_floats_alone_and_some_rows_give_the_same_bits(variant: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(37, 333, generator=generator).to(dtype)
    x = torch.randn(8, 333, generator=generator)
    together = gemv_float(variant, weights, x)
    for v in range(8):
        assert torch.equal(gemv_float(variant, weights, x[v : v + 1]), together[v : v + 1])
    assert torch.equal(gemv_float(variant, weights, x, 5, 19), together[:, 5:24])


@each_variant
def test_every_fp8_number(variant: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    weights = codes.view(torch.float8_e4m3fn).unsqueeze(1)
    y = gemv_float(variant, weights, torch.ones(1, 1))
    assert torch.equal(y[0].nan_to_num(1e9), weights[:, 0].float().nan_to_num(1e9))
    # The same numbers in whole registers.
    wide = weights.expand(-1, 64).contiguous()
    x = torch.zeros(1, 64)
    x[0, 17] = 1.0
    y = gemv_float(variant, wide, aligned(x))
    assert torch.equal(y[0].nan_to_num(1e9), weights[:, 0].float().nan_to_num(1e9))


@each_variant
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float_rows_with_a_distance(variant: str, dtype: torch.dtype) -> None:
    whole = torch.full((9, 50), torch.nan, dtype=dtype)
    whole[:, :41] = torch.randn(9, 41, generator=torch.Generator().manual_seed(4)).to(dtype)
    x = torch.randn(2, 41, generator=torch.Generator().manual_seed(5))
    library, matrix = load(variant), float_matrix(whole)
    matrix.cols = 41
    y = torch.empty(2, 9)
    library.gemv_float(
        byref(matrix), 0, 9, c_void_p(x.data_ptr()), 2, c_void_p(y.data_ptr()), 9, None
    )
    torch.testing.assert_close(y, x @ whole[:, :41].float().T, rtol=1e-5, atol=1e-5)
