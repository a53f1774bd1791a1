"""Embedding rows of every format of matrices against torch."""

import torch
from torch import Tensor

from swiftchat.engine.cpu.native import EmbedOp, Matrix, OpHeader, RowSet
from tests.support.cases import each_case
from tests.support.native.ops import FORMATS, each_variant, float_matrix, run_inputs, run_ops
from tests.support.native.tiles import LAYOUTS, Layout, random_tiles


def embed(variant: str, table: Matrix, ids: list[int], **fields: object) -> Tensor:
    op = EmbedOp(header=OpHeader(row_set=RowSet.TOKENS), out=0, table=table, **fields)
    inputs = run_inputs(len(ids), ids=ids)
    return run_ops(variant, [op], [(RowSet.TOKENS, table.cols)], {}, inputs)[0]


@each_variant
@each_case("dtype", FORMATS)
def test_float_tables(variant: str, dtype: torch.dtype) -> None:
    table = torch.randn(99, 130, generator=torch.Generator().manual_seed(0)).to(dtype)
    table[5, :3] = torch.nan
    ids = [0, 98, 5, 5, 17]
    found = embed(variant, float_matrix(table), ids, scale=1.0)
    torch.testing.assert_close(found, table.float()[ids], rtol=0, atol=0, equal_nan=True)


@each_variant
def test_scale_positions_and_ids_of_other_ranks(variant: str) -> None:
    generator = torch.Generator().manual_seed(1)
    table, positions = torch.randn(2, 50, 77, generator=generator)
    table[:, 0] = 0  # the product of a scale that is no power of two is rounded
    ids = [3, 49, -1, 50, 7]
    fields = {"scale": 8.0, "position_offset": 2, "positions": float_matrix(positions)}
    found = embed(variant, float_matrix(table), ids, **fields)
    is_local = torch.tensor([1.0, 1, 0, 0, 1])[:, None]
    expected = 8 * table[[3, 49, 0, 0, 7]] * is_local + positions[2:7]
    assert torch.equal(found, expected)


@each_variant
def test_a_second_table_with_fewer_rows(variant: str) -> None:
    table = torch.randn(50, 77, generator=torch.Generator().manual_seed(1))
    ids = [3, 49, 50, 1000, 0]
    found = embed(variant, float_matrix(table), ids, scale=2.0, is_second_table=1)
    assert torch.equal(found, 2 * table[[3, 49, 0, 0, 0]])


@each_variant
@each_case("layout", LAYOUTS)
def test_tiled_tables(variant: str, layout: Layout) -> None:
    tiles = random_tiles(layout, 37, 100, seed=layout.group_cols)
    ids = [36, 0, 15, 16, 17, 31]
    found = embed(variant, tiles.matrix, ids, scale=1.0)
    # One rounding of the sum with the minimum, one of the row's scale.
    torch.testing.assert_close(found.double(), tiles.dequantized[ids], rtol=3e-7, atol=3e-7)


@each_variant
def test_positions_without_a_table(variant: str) -> None:
    positions = torch.randn(9, 21, generator=torch.Generator().manual_seed(2))
    op = EmbedOp(out=0, scale=1.0, positions=float_matrix(positions))
    inputs = run_inputs(3, positions=[8, 0, 4])
    found = run_ops(variant, [op], [(RowSet.TOKENS, 21)], {}, inputs)[0]
    assert torch.equal(found, positions[[8, 0, 4]])
