"""GEMV and GEMM of tiled integer matrices and 16-bit activations, bit for bit and against fp64."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swiftchat.engine.cpu.native import TILE_ROWS, Format, Tables
from tests.support.cases import each_case
from tests.support.native.activations import Activations, in_order, random_activations
from tests.support.native.matmuls import MAX_GEMV_VECTORS, gemm_tiles, gemv_tiles
from tests.support.native.ops import each_variant
from tests.support.native.tiles import LAYOUTS, VALUE_BITS, Layout, Tiles, random_tiles

Kernel = Callable[[str, Tiles, Activations], Tensor]
each_kernel = pytest.mark.parametrize(
    ("kernel", "max_vectors"), [(gemv_tiles, MAX_GEMV_VECTORS), (gemm_tiles, 40)]
)


@each_variant
@each_kernel
@each_case("layout", LAYOUTS)
def test_results_are_those_of_the_order_of_sums(
    variant: str, kernel: Kernel, max_vectors: int, layout: Layout
) -> None:
    every = range(1, MAX_GEMV_VECTORS + 1)  # GEMV has code of its own for each number
    few = (1, MAX_GEMV_VECTORS)
    for rows, cols, numbers in ((16, 32, few), (41, 80, every), (70, 1110, few), (5, 7, few)):
        tiles = random_tiles(layout, rows, cols)
        for num_vectors in {*numbers, 13, max_vectors}:
            if num_vectors <= max_vectors:
                x = random_activations(num_vectors, cols)
                assert torch.equal(kernel(variant, tiles, x)[:, :rows], in_order(tiles, x))


@each_variant
@each_kernel
@settings(max_examples=25, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    rows=st.integers(1, 90),
    cols=st.integers(1, 700),
    num_vectors=st.integers(0, 39),
    row_scale=st.booleans(),
    seed=st.integers(0, 100),
)
def test_any_shape(
    variant: str,
    kernel: Kernel,
    max_vectors: int,
    layout: Layout,
    rows: int,
    cols: int,
    num_vectors: int,
    row_scale: bool,
    seed: int,
) -> None:
    tiles = random_tiles(layout, rows, cols, seed)
    dequantized = tiles.dequantized
    if not row_scale:
        dequantized = dequantized / tiles.tensors[1].double().unsqueeze(1)
        tiles.matrix.row_scale = None
    x = random_activations(num_vectors % max_vectors + 1, cols, seed)
    y = kernel(variant, tiles, x)[:, :rows]
    assert torch.equal(y, in_order(tiles, x))
    # Each of the sums of a block is rounded four times: to fp32, times two scales, added.
    exact_x = x.dequantized[:, :cols]
    bound = exact_x.abs() @ dequantized.abs().T + exact_x.sum(1, keepdim=True).abs()
    blocks = x.scales.shape[1]
    torch.testing.assert_close(
        y.double(), exact_x @ dequantized.T, rtol=0, atol=float(bound.max()) * (blocks + 8) * 2**-24
    )


@each_variant
def test_gemv_of_one_vector_and_of_some_tiles_gives_the_same_bits(variant: str) -> None:
    tiles = random_tiles(Layout(Format.INT4, 32, has_minimum=True), 16 * 9 + 5, 1040)
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
def test_gemm_of_some_tiles_and_of_some_vectors_gives_the_same_bits(variant: str) -> None:
    tiles = random_tiles(Layout(Format.INT4, 32, has_minimum=True), 16 * 37, 1040)
    x = random_activations(300, 1040)
    whole = gemm_tiles(variant, tiles, x)
    for first_tile, num_tiles, first_vector, num_vectors in (
        (0, 1, 0, 1),
        (3, 2, 7, 9),
        (1, 19, 255, 45),
        (36, 1, 5, 290),
    ):
        part = gemm_tiles(variant, tiles, x, first_tile, num_tiles, first_vector, num_vectors)
        rows = slice(first_tile * TILE_ROWS, (first_tile + num_tiles) * TILE_ROWS)
        assert torch.equal(part, whole[first_vector : first_vector + num_vectors, rows])


@each_variant
@each_kernel
@each_case(
    ("layout", "byte", "weight"),
    [
        (Layout(Format.INT4, 0), 0x00, -8),
        (Layout(Format.INT4, 32, has_minimum=True), 0xFF, 15),
        (Layout(Format.INT8, 0), 0x80, -128),
        (Layout(Format.INT8, 32), 0x80, -128),
        (Layout(Format.INT2, 256), 0xFF, 2),
        (Layout(Format.INT3, 16, tables=Tables.BYTES, factor_cols=32), 0xFF, 3),
        (Layout(Format.INT5, 32), 0x00, -16),
        (Layout(Format.INT5, 32, has_minimum=True), 0xFF, 31),
        (Layout(Format.INT6, 16, tables=Tables.BYTES, factor_cols=32), 0xFF, 31),
        (Layout(Format.INT6, 16, tables=Tables.BYTES, factor_cols=32), 0x00, -32),
        (Layout(Format.IQ3_XXS, 32, tables=Tables.BYTES, factor_cols=32), 0xFF, -62),
        (Layout(Format.IQ3_XXS, 32, tables=Tables.BYTES, factor_cols=32), 0x77, 62),
        (Layout(Format.IQ3_S, 32, tables=Tables.BYTES, factor_cols=32), 0x77, 15),
        (Layout(Format.IQ4, 32), 0x00, -127),
        (Layout(Format.IQ4, 32), 0xFF, 113),
    ],
)
def test_extreme_integers_do_not_overflow(
    variant: str, kernel: Kernel, max_vectors: int, layout: Layout, byte: int, weight: int
) -> None:
    """Also of planes of -128 and 127, which are larger than quantization makes them."""
    tiles = random_tiles(layout, 16, 64)
    tables = tiles.matrix.stride - 2 * 64 * VALUE_BITS.get(layout.format, 4)
    packed = tiles.tensors[0].fill_(byte)
    # Scales 1, minimums 0.
    packed[:, :tables].view(torch.float16).fill_(1.0)
    if layout.factor_cols:  # two fp16 factors of each row
        packed[:, 2 * 32 : tables] = 1
    if layout.has_minimum:
        packed[:, tables // 2 : tables] = 0
    tiles.matrix.row_scale = None
    for value in (-32640, -32512, 32512, 32639):
        x = random_activations(3, 64)
        x.integers.fill_(value)
        x.scales.fill_(1.0)
        assert (kernel(variant, tiles, x) == torch.tensor(64.0 * value * weight)).all()


@each_variant
@each_kernel
def test_nan_of_one_vector_stays_there(variant: str, kernel: Kernel, max_vectors: int) -> None:
    tiles = random_tiles(Layout(Format.INT8, 32), 40, 100)
    x = random_activations(3, 100)
    x.scales[1, 2] = torch.nan
    y = kernel(variant, tiles, x)[:, :40]
    assert y[1].isnan().all() and not y[0].isnan().any() and not y[2].isnan().any()
