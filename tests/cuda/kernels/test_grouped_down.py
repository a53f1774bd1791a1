"""grouped_down against fp64. Tolerance: one rounding of the result."""

from dataclasses import replace

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.grouped_experts import grouped_down
from tests.support.kernels.case import Inputs, assert_close, poisoned
from tests.support.kernels.grouped_experts import (
    CASES,
    RandomMatrices,
    random_choices,
    sorted_choices,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("kind", "n", "experts", "chosen", "hidden", "inner"), CASES)
def test_down_equals_fp64(
    gpu: Gpu, kind: str, n: int, experts: int, chosen: int, hidden: int, inner: int
) -> None:
    case = RandomMatrices(kind, experts, hidden, inner)
    dtype = case.dtype
    ids = random_choices(n, n, experts, chosen)
    rows, order, expert = sorted_choices(gpu, ids, experts)
    x = Inputs(n, dtype).normal(len(order), inner)
    expected = torch.empty(len(order), hidden, dtype=torch.float64, device="cuda")
    for e in range(experts):
        own = expert == e
        expected[order[own]] = x.double()[own] @ case.matrices[e].T
    out = poisoned(len(order), hidden, dtype=dtype)
    grouped_down(gpu, x, case.plain, rows, out)
    assert_close(out, expected, case.tolerance)
    grouped_down(gpu, x, case.biased, rows, out)
    assert_close(out, expected + case.biases[ids.flatten().long()], case.tolerance)


def test_unsupported_shapes_raise(gpu: Gpu) -> None:
    case = RandomMatrices("bfloat16", 2, 64, 64)
    rows, *_ = sorted_choices(gpu, random_choices(1, 4, 2, 1), 2)
    make = Inputs(1, case.dtype)
    x, out = make.normal(4, 64), make.normal(4, 64)
    for name, wrong in (("columns", 36), ("rows", 33)):
        with pytest.raises(ValueError, match="does not take PLAIN matrices of"):
            grouped_down(gpu, x, replace(case.plain, **{name: wrong}), rows, out)
    with pytest.raises(ValueError, match="matrices must be"):
        grouped_down(gpu, make.normal(4, 72), case.plain, rows, out)
    with pytest.raises(ValueError, match="out must be"):
        grouped_down(gpu, x, case.plain, rows, out.half())
