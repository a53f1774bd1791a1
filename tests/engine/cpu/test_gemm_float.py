"""GEMM of matrices of every format in fp32, and of bf16 matrices and activations, against fp64."""

from ctypes import byref, c_void_p

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swiftchat.engine.cpu.structures import TILE_ROWS, Format, Matrix
from tests.support.cpu_libraries import load
from tests.support.native_ops import aligned, each_variant, float_matrix
from tests.support.tiles import random_tiles

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]
# Format, columns of a group, minimums, fp32 tables.
INTEGER_LAYOUTS = [
    (Format.INT4, 32, False, False),
    (Format.INT4, 128, True, True),
    (Format.INT4, 16, True, False),
    (Format.INT8, 0, False, False),
    (Format.INT8, 16, False, False),
    (Format.INT8, 64, True, False),
]


def gemm_float(
    variant: str, matrix: Matrix, x: Tensor, first_tile: int = 0, num_tiles: int | None = None
) -> Tensor:
    """Return y fp32 [n, rows from first_tile]; bf16 x: the GEMM of bf16. Checks what is written."""
    library = load(variant)
    all_tiles = -(-matrix.rows // TILE_ROWS)
    num_tiles = all_tiles - first_tile if num_tiles is None else num_tiles
    width = min(matrix.rows - first_tile * TILE_ROWS, num_tiles * TILE_ROWS)
    if x.dtype == torch.bfloat16:
        function, rows = library.gemm_bf16, _bf16_rows(x)
    else:
        function, rows = library.gemm_float, aligned(x)
    y = aligned(torch.full((len(x) + 1, width + 1), 7.0))
    panel = aligned(torch.full((library.gemm_panel_bytes(None, 0) // 4,), torch.nan))
    function.restype = None
    function(
        byref(matrix),
        first_tile,
        num_tiles,
        c_void_p(rows.data_ptr()),
        len(x),
        c_void_p(y.data_ptr()),
        width + 1,
        c_void_p(panel.data_ptr()),
    )
    assert (y[len(x) :] == 7).all()
    assert (y[:, width:] == 7).all()
    return y[: len(x), :width].clone()


def _bf16_rows(x: Tensor) -> Tensor:
    """Lay rows out at the distance of `bf16_row_stride`; what is not read is NaN."""
    cols = x.shape[1]
    stride = -(-cols // 32) * 32
    stride += 0 if stride % 1024 else 32
    rows = aligned(torch.full((len(x), stride), torch.nan, dtype=torch.bfloat16))
    rows[:, :cols] = x
    if cols % 2:
        rows[:, cols] = 0
    return rows


def random_floats(dtype: torch.dtype, rows: int, cols: int, seed: int = 0) -> Tensor:
    """Return a matrix [rows, cols] whose rows are 3 elements longer, with NaN there."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.full((rows, cols + 3), torch.nan)
    matrix[:, :cols] = torch.randn(rows, cols, generator=generator)
    return aligned(matrix.to(dtype))[:, :cols]


def assert_product(y: Tensor, x: Tensor, weights: Tensor) -> None:
    """Compare with fp64; an fp32 sum of n products errs by at most n times half an ulp of each."""
    x, weights = x.double(), weights.double()
    bound = float((x.abs() @ weights.abs().T).max()) * (x.shape[1] + 2) * 2**-24
    torch.testing.assert_close(y.double(), x @ weights.T, rtol=0, atol=bound)


@each_variant
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_matrices(variant: str, dtype: torch.dtype) -> None:
    for rows, cols, num_vectors in ((16, 32, 8), (45, 77, 21), (3, 1, 1), (64, 1201, 40)):
        weights = random_floats(dtype, rows, cols)
        x = torch.randn(num_vectors, cols)
        assert_product(gemm_float(variant, float_matrix(weights), x), x, weights)


@each_variant
@settings(max_examples=25, deadline=None)
@given(
    dtype=st.sampled_from(FLOATS),
    rows=st.integers(1, 90),
    cols=st.integers(1, 700),
    num_vectors=st.integers(1, 40),
    row_scale=st.booleans(),
    seed=st.integers(0, 100),
)
def test_float_matrices_of_any_shape(
    variant: str,
    dtype: torch.dtype,
    rows: int,
    cols: int,
    num_vectors: int,
    row_scale: bool,
    seed: int,
) -> None:
    weights = random_floats(dtype, rows, cols, seed)
    matrix = float_matrix(weights)
    scale = torch.rand(rows) + 0.5
    if row_scale:
        matrix.row_scale = scale.data_ptr()
    expected = weights.double() * (scale.double().unsqueeze(1) if row_scale else 1)
    x = torch.randn(num_vectors, cols, generator=torch.Generator().manual_seed(seed))
    assert_product(gemm_float(variant, matrix, x), x, expected)


@each_variant
@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 70),
    cols=st.integers(1, 1200),
    num_vectors=st.integers(1, 40),
    seed=st.integers(0, 100),
)
def test_bf16_activations(variant: str, rows: int, cols: int, num_vectors: int, seed: int) -> None:
    weights = random_floats(torch.bfloat16, rows, cols, seed)
    x = torch.randn(num_vectors, cols, generator=torch.Generator().manual_seed(seed))
    assert_product(gemm_float(variant, float_matrix(weights), x.bfloat16()), x.bfloat16(), weights)


@each_variant
def test_rows_are_rounded_to_bf16(variant: str) -> None:
    for cols in (1, 31, 32, 33, 97):
        x = torch.randn(cols) * torch.logspace(-30, 30, cols)
        rounded = torch.full((cols + 2,), 7.0, dtype=torch.bfloat16)
        load(variant).round_row_to_bf16(c_void_p(x.data_ptr()), cols, c_void_p(rounded.data_ptr()))
        assert torch.equal(rounded[:cols], x.bfloat16())
        assert (rounded[cols : cols + cols % 2] == 0).all()
        assert (rounded[cols + cols % 2 :] == 7).all()


@each_variant
@settings(max_examples=20, deadline=None)
@given(
    layout=st.sampled_from(INTEGER_LAYOUTS),
    rows=st.integers(1, 70),
    cols=st.integers(1, 700),
    num_vectors=st.integers(1, 20),
    seed=st.integers(0, 100),
)
def test_integer_matrices_as_fp32(
    variant: str,
    layout: tuple[Format, int, bool, bool],
    rows: int,
    cols: int,
    num_vectors: int,
    seed: int,
) -> None:
    tiles = random_tiles(layout[0], rows, cols, *layout[1:], seed=seed)
    x = torch.randn(num_vectors, cols, generator=torch.Generator().manual_seed(seed))
    assert_product(gemm_float(variant, tiles.matrix, x), x, tiles.dequantized)


@each_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_a_float_matrix_give_the_same_bits(variant: str, dtype: torch.dtype) -> None:
    weights = random_floats(torch.bfloat16, 16 * 21 - 5, 1400)
    matrix, x = float_matrix(weights), torch.randn(530, 1400).to(dtype)
    whole = gemm_float(variant, matrix, x)
    for first_tile, num_tiles, first, last in ((0, 1, 0, 1), (3, 18, 7, 20), (19, 2, 255, 530)):
        part = gemm_float(variant, matrix, x[first:last], first_tile, num_tiles)
        rows = slice(first_tile * TILE_ROWS, (first_tile + num_tiles) * TILE_ROWS)
        assert torch.equal(part, whole[first:last, rows])


@each_variant
def test_every_fp8_number_is_converted(variant: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    weights = aligned(codes.view(16, 16))
    y = gemm_float(variant, float_matrix(weights), torch.eye(16))
    expected = weights.float()
    # Zero times NaN is NaN: rows with a NaN have no other number.
    expected[expected.isnan().any(1)] = torch.nan
    torch.testing.assert_close(y.T, expected, rtol=0, atol=0, equal_nan=True)
