"""Norms against torch in fp64."""

import torch
from torch.nn.functional import layer_norm, rms_norm

from swiftchat.engine.cpu.native import NormKind, NormOp, OpHeader, RowSet
from tests.support.cases import each_case
from tests.support.native.ops import each_variant, norm, run_inputs, run_ops


@each_variant
@each_case(("rows", "groups", "width"), [(1, 35, 256), (70, 3, 33), (5, 1, 12)])
@each_case("accumulate", [0, 1])
def test_groups(variant: str, rows: int, groups: int, width: int, accumulate: int) -> None:
    generator = torch.Generator().manual_seed(width)
    x, delta = torch.randn(2, rows, groups * width, generator=generator)
    weight = torch.randn(1, width, generator=generator)
    op = NormOp(
        header=OpHeader(row_set=RowSet.TOKENS),
        x=0,
        out=1,
        accumulate=accumulate,
        group_width=width,
        norm=norm(NormKind.RMS, weight, None, eps=1e-5),
    )
    widths = [(RowSet.TOKENS, groups * width)] * 2
    found = run_ops(variant, [op], widths, {0: x, 1: delta}, run_inputs(rows))[1]
    each = x.double().view(rows, groups, width)
    expected = rms_norm(each, (width,), weight[0].double(), 1e-5).view(rows, -1)
    expected = expected + accumulate * delta.double()
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=5e-6)


@each_variant
@each_case("kind", [NormKind.RMS, NormKind.LAYER])
@each_case("placement", ["out", "in place", "added", "added in place"])
@each_case("shape", [(1, 576), (5, 33), (40, 257), (3, 5001), (2, 1)])
def test_norm(variant: str, shape: tuple[int, int], placement: str, kind: NormKind) -> None:
    rows, width = shape
    generator = torch.Generator().manual_seed(width)
    x, delta, weight, bias = (
        torch.randn(n, width, generator=generator) + 0.5 for n in (rows, rows, 1, 1)
    )
    has_bias = kind == NormKind.LAYER
    op = NormOp(
        header=OpHeader(row_set=RowSet.TOKENS),
        x=0,
        out=0 if "in place" in placement else 1,
        accumulate="added" in placement,
        norm=norm(kind, weight, bias if has_bias else None, eps=1e-5),
    )
    widths = [(RowSet.TOKENS, width)] * 2
    found = run_ops(variant, [op], widths, {0: x, 1: delta}, run_inputs(rows))[op.out]
    if has_bias:
        wide = x.double(), (width,), weight[0].double(), bias[0].double(), 1e-5
        expected = layer_norm(*wide)
    else:
        expected = rms_norm(x.double(), (width,), weight[0].double(), 1e-5)
    if "added" in placement:
        expected = expected + (x if op.out == 0 else delta).double()
    # A few roundings of factors up to 5, and the mean's, which a small variance magnifies.
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=5e-6)
