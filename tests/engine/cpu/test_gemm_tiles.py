"""GEMM of tiled integer matrices and 16-bit activations, bit for bit and against fp64."""

from ctypes import byref, c_void_p

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swiftchat.engine.cpu.structures import TILE_ROWS, Format
from tests.support.activations import Activations, in_order, quantized_rows, random_activations
from tests.support.cpu_libraries import load
from tests.support.native_ops import aligned, each_variant
from tests.support.tiles import Tiles, random_tiles


def gemm_tiles(
    variant: str,
    tiles: Tiles,
    x: Activations,
    first_tile: int = 0,
    num_tiles: int | None = None,
    first_vector: int = 0,
    num_vectors: int | None = None,
) -> Tensor:
    """Return y [num_vectors, 16 * num_tiles]; checks that nothing else is written."""
    library = load(variant)
    all_tiles = -(-tiles.matrix.rows // TILE_ROWS)
    num_tiles = all_tiles - first_tile if num_tiles is None else num_tiles
    num_vectors = len(x.integers) - first_vector if num_vectors is None else num_vectors
    rows = quantized_rows(x)
    width = num_tiles * TILE_ROWS
    y = aligned(torch.full((num_vectors + 1, width + 3), 7.0))
    panel = aligned(torch.full((library.gemm_panel_bytes(None, 0) // 4,), torch.nan))
    library.gemm_tiles.restype = None
    library.gemm_tiles(
        byref(tiles.matrix),
        first_tile,
        num_tiles,
        byref(rows),
        first_vector,
        num_vectors,
        c_void_p(y.data_ptr()),
        width + 3,
        c_void_p(panel.data_ptr()),
    )
    assert (y[num_vectors:] == 7).all()
    assert (y[:, width:] == 7).all()
    return y[:num_vectors, :width].clone()


# Format, columns of a group, minimums, fp32 tables.
LAYOUTS = [
    (Format.INT4, 32, False, False),
    (Format.INT4, 32, True, False),
    (Format.INT4, 128, False, False),
    (Format.INT4, 64, True, True),
    (Format.INT4, 16, True, False),
    (Format.INT8, 32, False, False),
    (Format.INT8, 0, False, False),
    (Format.INT8, 16, False, False),
    (Format.INT8, 16, True, True),
    (Format.INT8, 64, True, False),
]


@each_variant
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_are_those_of_the_order_of_sums(
    variant: str, layout: tuple[Format, int, bool, bool]
) -> None:
    format, group_cols, has_minimum, wide_tables = layout
    for rows, cols, num_vectors in ((16, 32, 8), (41, 80, 13), (70, 1110, 3), (5, 7, 40)):
        tiles = random_tiles(format, rows, cols, group_cols, has_minimum, wide_tables)
        x = random_activations(num_vectors, cols)
        y = gemm_tiles(variant, tiles, x)
        assert torch.equal(y[:, :rows], in_order(tiles, x))


@each_variant
@settings(max_examples=25, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    rows=st.integers(1, 90),
    cols=st.integers(1, 700),
    num_vectors=st.integers(1, 40),
    row_scale=st.booleans(),
    seed=st.integers(0, 100),
)
def test_any_shape(
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
    y = gemm_tiles(variant, tiles, x)[:, :rows]
    assert torch.equal(y, in_order(tiles, x))
    # Each of the sums of a block is rounded four times: to fp32, times two scales, added.
    exact_x = x.dequantized[:, :cols]
    bound = exact_x.abs() @ dequantized.abs().T + exact_x.sum(1, keepdim=True).abs()
    blocks = x.scales.shape[1]
    torch.testing.assert_close(
        y.double(), exact_x @ dequantized.T, rtol=0, atol=float(bound.max()) * (blocks + 8) * 2**-24
    )


@each_variant
def test_parts_of_a_matrix_and_of_the_vectors_give_the_same_bits(variant: str) -> None:
    tiles = random_tiles(Format.INT4, 16 * 37, 1040, 32, has_minimum=True)
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
@pytest.mark.parametrize("format", [Format.INT4, Format.INT8])
def test_extreme_integers_do_not_overflow(variant: str, format: Format) -> None:
    tiles = random_tiles(format, 16, 64, 0)
    extremes = {Format.INT4: 0x00, Format.INT8: 0x80}
    tiles.tensors[0].fill_(extremes[format])
    smallest = {Format.INT4: -8, Format.INT8: -128}[format]
    tiles.matrix.row_scale = None
    x = random_activations(3, 64)
    x.integers.fill_(-32512)
    x.scales.fill_(1.0)
    y = gemm_tiles(variant, tiles, x)
    assert (y == float(64 * 32512 * -smallest)).all()
