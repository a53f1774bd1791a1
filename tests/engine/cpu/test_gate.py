"""Columns without the gates, gated rows and products of columns, against torch in fp64."""

import torch

from swiftchat.engine.cpu.native import DropColumnsOp, GateOp, OpHeader, RowSet
from tests.support.cases import each_case
from tests.support.native.ops import each_variant, run_inputs, run_ops

HEADER = OpHeader(row_set=RowSet.TOKENS)
# Rows, columns before, between and after.
SHAPES = [(1, 1, 1, 1), (3, 96, 96, 64), (70, 33, 7, 12), (2, 5001, 5001, 0), (5, 0, 40, 3)]


def random(*shape: int) -> torch.Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@each_variant
@each_case("shape", SHAPES)
def test_columns_are_dropped(variant: str, shape: tuple[int, int, int, int]) -> None:
    rows, before, dropped, after = shape
    x = random(rows, before + dropped + after)
    x[:, before : before + dropped] = torch.nan
    op = DropColumnsOp(header=HEADER, x=0, out=1, first=before)
    widths = [(RowSet.TOKENS, x.shape[1]), (RowSet.TOKENS, before + after)]
    found = run_ops(variant, [op], widths, {0: x}, run_inputs(rows))[1]
    assert torch.equal(found, torch.cat([x[:, :before], x[:, before + dropped :]], 1))


@each_variant
@each_case("shape", SHAPES)
def test_rows_are_gated(variant: str, shape: tuple[int, int, int, int]) -> None:
    rows, before, width, after = shape
    scores, out = random(rows, before + width + after), random(rows, width)
    scores[:, :before] = scores[:, before + width :] = torch.nan
    op = GateOp(header=HEADER, x=0, out=1, first=before)
    widths = [(RowSet.TOKENS, scores.shape[1]), (RowSet.TOKENS, width)]
    found = run_ops(variant, [op], widths, {0: scores, 1: out}, run_inputs(rows))
    expected = out.double() * scores[:, before : before + width].double().sigmoid()
    torch.testing.assert_close(found[1].double(), expected, rtol=1e-6, atol=1e-30)
    assert torch.equal(found[0].isnan(), scores.isnan())


@each_variant
@each_case("shape", SHAPES)
def test_rows_are_multiplied(variant: str, shape: tuple[int, int, int, int]) -> None:
    rows, before, width, after = shape
    factors, out = random(rows, before + width + after), random(rows, width)
    factors[:, :before] = factors[:, before + width :] = torch.nan
    op = GateOp(header=HEADER, x=0, out=1, first=before, is_plain=1)
    widths = [(RowSet.TOKENS, factors.shape[1]), (RowSet.TOKENS, width)]
    found = run_ops(variant, [op], widths, {0: factors, 1: out}, run_inputs(rows))[1]
    assert torch.equal(found, out * factors[:, before : before + width])


@each_variant
def test_gates_that_are_not_finite(variant: str) -> None:
    scores = torch.tensor([[torch.inf, -torch.inf, torch.nan, -200.0]])
    op = GateOp(header=HEADER, x=0, out=1)
    widths = [(RowSet.TOKENS, 4)] * 2
    found = run_ops(variant, [op], widths, {0: scores, 1: torch.ones(1, 4)}, run_inputs(1))[1]
    expected = torch.tensor([[1.0, 0.0, torch.nan, 0.0]])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-35, equal_nan=True)
