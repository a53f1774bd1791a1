"""Norms against torch in fp64."""

import pytest
import torch
from torch.nn.functional import layer_norm, rms_norm

from swiftchat.engine.cpu.structures import NormKind, NormOp, OpHeader, RowSet
from tests.support.native_ops import each_variant, norm, run_inputs, run_ops


@each_variant
@pytest.mark.parametrize("kind", [NormKind.RMS, NormKind.LAYER])
@pytest.mark.parametrize("placement", ["out", "in place", "added", "added in place"])
@pytest.mark.parametrize("shape", [(1, 576), (5, 33), (40, 257), (3, 5001), (2, 1)])
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
