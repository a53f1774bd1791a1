"""add_norm against fp64. Tolerance: fp32 results, whose sums differ by their order."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.layers.norm import add_norm
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu
EPS = 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zero_delta", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(
    ("n", "hidden"),
    [(1, 4096), (3, 2304), (7, 576), (5, 48), (2, 5376), (2, 8192), (2, 12_000), (2, 10_007)],
)
def test_add_norm_equals_fp64(
    gpu: Gpu, dtype, zero_delta: bool, offset: float, n: int, hidden: int
) -> None:
    make = Inputs(n * hidden, dtype)
    x = make.normal(n, hidden, dtype=torch.float32, scale=20)
    delta = make.normal(n, hidden, dtype=torch.float32 if zero_delta else dtype, scale=3)
    weight = make.normal(hidden)
    exact = delta.double()
    normed = exact * (exact.square().mean(-1, keepdim=True) + EPS).rsqrt()
    expected = x.double() + normed * (weight.double() + offset)
    before = delta.clone()
    add_norm(gpu, x, delta, weight, EPS, weight_offset=offset, zero_delta=zero_delta)
    assert_close(x, expected, 2e-6)
    assert torch.equal(delta, torch.zeros_like(delta) if zero_delta else before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zero_delta", [False, True])
@pytest.mark.parametrize(("n", "hidden"), [(1, 2560), (5, 48), (2, 12_000), (3, 10_007)])
def test_scale_and_copy(gpu: Gpu, dtype, zero_delta: bool, n: int, hidden: int) -> None:
    make = Inputs(n * hidden, dtype)
    delta = make.normal(n, hidden, dtype=torch.float32 if zero_delta else dtype, scale=3)
    weight, scale = make.normal(hidden), make.normal(1) + 2
    exact = delta.double()
    normed = exact * (exact.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()
    start = make.normal(n, hidden, dtype=torch.float32, scale=20)
    for by, target in ((scale, True), (scale, False), (None, True)):
        x, copy = start.clone(), poisoned(n, hidden, dtype=dtype) if target else None
        one = delta.clone()
        add_norm(gpu, x, one, weight, EPS, zero_delta=zero_delta, scale=by, copy=copy)
        expected = (start.double() + normed) * (1 if by is None else by.double())
        assert_close(x, expected, 2e-6)
        if copy is not None:
            assert_close(copy, expected, ROUNDING[dtype])


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    make = Inputs(2)
    x, delta, weight = make.normal(4, 64), make.normal(4, 64), make.normal(64)
    with pytest.raises(ValueError, match=r"delta must be .*4, 64"):
        add_norm(gpu, x, make.normal(4, 65), weight, EPS)
    with pytest.raises(ValueError, match="scale must be"):
        add_norm(gpu, x, delta, weight, EPS, scale=weight)
    with pytest.raises(ValueError, match="copy must be"):
        add_norm(gpu, x, delta, weight, EPS, copy=weight)
    with pytest.raises(ValueError, match=r"delta must be torch\.float32"):
        add_norm(gpu, x, delta.half(), weight.half(), EPS, zero_delta=True)
