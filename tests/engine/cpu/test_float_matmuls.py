"""GEMV and GEMM of float matrices in fp32, and the GEMM's other inputs, against fp64."""

from collections.abc import Callable
from ctypes import c_void_p

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swiftchat.engine.cpu.native import TILE_ROWS, Matrix
from tests.support.cases import each_case
from tests.support.native.libraries import load
from tests.support.native.matmuls import (
    MAX_GEMV_VECTORS,
    gemm_float,
    gemv_float,
    guarded_float_matrix,
)
from tests.support.native.ops import each_variant
from tests.support.native.tiles import LAYOUTS, Layout, random_tiles

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
Kernel = Callable[[str, Matrix, Tensor], Tensor]


def gemv_terms(cols: int) -> float:
    """How often a term of a GEMV's sums is rounded: it adds 16 of them or more at a time."""
    return cols / 16 + 11


def gemm_terms(cols: int) -> float:
    return cols + 2


# The kernel, the most vectors to test it with, and how often a term of its sums is rounded.
each_kernel = pytest.mark.parametrize(
    ("kernel", "max_vectors", "terms"),
    [(gemv_float, MAX_GEMV_VECTORS, gemv_terms), (gemm_float, 40, gemm_terms)],
)


def random_floats(dtype: torch.dtype, rows: int, cols: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, cols, generator=generator).to(dtype)


def assert_product(y: Tensor, x: Tensor, weights: Tensor, terms: float) -> None:
    """Compare y with x @ weights.T in fp64."""
    x, weights = x.double(), weights.double()
    bound = x.abs() @ weights.abs().T * terms * 2**-24
    assert ((y.double() - x @ weights.T).abs() <= bound).all()


@each_variant
@each_kernel
@each_dtype
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 90),
    cols=st.integers(1, 700),
    gap=st.sampled_from([0, 3]),
    num_vectors=st.integers(0, 39),
    row_scale=st.booleans(),
    seed=st.integers(0, 100),
)
def test_any_shape(
    variant: str,
    kernel: Kernel,
    max_vectors: int,
    terms: Callable[[int], float],
    dtype: torch.dtype,
    rows: int,
    cols: int,
    gap: int,
    num_vectors: int,
    row_scale: bool,
    seed: int,
) -> None:
    weights = random_floats(dtype, rows, cols, seed)
    matrix, _memory = guarded_float_matrix(weights, gap)
    expected, scale = weights.double(), torch.rand(rows) + 0.5
    if row_scale:
        matrix.row_scale = scale.data_ptr()
        expected = expected * scale.double().unsqueeze(1)
    x = random_floats(torch.float32, num_vectors % max_vectors + 1, cols, seed + 1)
    assert_product(kernel(variant, matrix, x), x, expected, terms(cols))


@each_variant
@each_kernel
@each_dtype
def test_long_rows(
    variant: str,
    kernel: Kernel,
    max_vectors: int,
    terms: Callable[[int], float],
    dtype: torch.dtype,
) -> None:
    weights = random_floats(dtype, 64, 1201)
    matrix, _memory = guarded_float_matrix(weights)
    x = random_floats(torch.float32, max_vectors, 1201, 1)
    assert_product(kernel(variant, matrix, x), x, weights, terms(1201))


@each_variant
@each_kernel
def test_every_fp8_number_is_converted(
    variant: str, kernel: Kernel, max_vectors: int, terms: Callable[[int], float]
) -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).unsqueeze(1)
    # Alone in a row, and at every place of rows that are longer than a register.
    for cols, place in ((1, 0), *((64, place) for place in range(64))):
        matrix, _memory = guarded_float_matrix(numbers.expand(-1, cols))
        x = torch.zeros(1, cols)
        x[0, place] = 1.0
        y = kernel(variant, matrix, x)[0]
        assert torch.equal(y.nan_to_num(1e9), numbers[:, 0].float().nan_to_num(1e9))


@each_variant
@each_dtype
def test_gemv_of_one_vector_and_of_some_rows_gives_the_same_bits(
    variant: str, dtype: torch.dtype
) -> None:
    matrix, _memory = guarded_float_matrix(random_floats(dtype, 37, 333))
    x = random_floats(torch.float32, 8, 333, 1)
    together = gemv_float(variant, matrix, x)
    for v in range(8):
        assert torch.equal(gemv_float(variant, matrix, x[v : v + 1]), together[v : v + 1])
    assert torch.equal(gemv_float(variant, matrix, x, 5, 19), together[:, 5:24])


@each_variant
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_gemm_of_some_tiles_and_of_some_vectors_gives_the_same_bits(
    variant: str, dtype: torch.dtype
) -> None:
    matrix, _memory = guarded_float_matrix(random_floats(torch.bfloat16, 16 * 21 - 5, 1400))
    x = random_floats(dtype, 530, 1400, 1)
    whole = gemm_float(variant, matrix, x)
    for first_tile, num_tiles, first, last in ((0, 1, 0, 1), (3, 18, 7, 20), (19, 2, 255, 530)):
        part = gemm_float(variant, matrix, x[first:last], first_tile, num_tiles)
        rows = slice(first_tile * TILE_ROWS, (first_tile + num_tiles) * TILE_ROWS)
        assert torch.equal(part, whole[first:last, rows])


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
    matrix, _memory = guarded_float_matrix(weights)
    x = random_floats(torch.bfloat16, num_vectors, cols, seed + 1)
    assert_product(gemm_float(variant, matrix, x), x, weights, gemm_terms(cols))


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
    layout=st.sampled_from(LAYOUTS),
    rows=st.integers(1, 70),
    cols=st.integers(1, 700),
    num_vectors=st.integers(1, 20),
    seed=st.integers(0, 100),
)
def test_integer_matrices_as_fp32(
    variant: str, layout: Layout, rows: int, cols: int, num_vectors: int, seed: int
) -> None:
    tiles = random_tiles(layout, rows, cols, seed)
    x = random_floats(torch.float32, num_vectors, cols, seed + 1)
    y = gemm_float(variant, tiles.matrix, x)
    # A weight is rounded itself, and its scale and minimum may cancel each other.
    x, weights = x.double(), tiles.dequantized
    atol = float((x.abs() @ weights.abs().T).max()) * gemm_terms(cols) * 2**-24
    torch.testing.assert_close(y.double(), x @ weights.T, rtol=0, atol=atol)
