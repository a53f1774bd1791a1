"""norm against fp64. Tolerance: one rounding of the result; fp32 the order of a sum."""

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.layers.norm import norm
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu
EPS = 1e-5


def reference(x: Tensor, weight: Tensor, shift: Tensor | None, layer_norm: bool) -> Tensor:
    x = x.double()
    if layer_norm:
        x = x - x.mean(-1, keepdim=True)
    normed = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()
    return normed if shift is None else normed + shift.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(
    ("n", "hidden"),
    # Whole and part rows in registers, from one vector a thread to three; rows in passes.
    [(1, 4096), (3, 2048), (7, 576), (5, 48), (2, 5128), (2, 8192), (2, 12_000), (2, 10_007)],
)
def test_norm_with_all_options(gpu: Gpu, dtype, layer_norm: bool, n: int, hidden: int) -> None:
    make = Inputs(n * hidden, dtype)
    # Rows far from zero: a variance taken as x² - mean² would cancel.
    x = make.normal(n, hidden, dtype=torch.float32) + 30
    delta = make.normal(n, hidden)
    weight, shift = make.normal(hidden), make.normal(hidden) if layer_norm else None
    total = x.double() + delta.double()
    out = poisoned(n, hidden, dtype=dtype)
    norm(gpu, x, weight, EPS, out, delta=delta, shift=shift, layer_norm=layer_norm)
    assert_close(x, total, 1e-6)
    assert_close(out, reference(total, weight, shift, layer_norm), max(ROUNDING[dtype], 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [2304, 10_007])
def test_weight_offset(gpu: Gpu, dtype, hidden: int) -> None:
    make = Inputs(hidden, dtype)
    x, weight = make.normal(3, hidden, dtype=torch.float32), make.normal(hidden)
    out = poisoned(3, hidden, dtype=dtype)
    norm(gpu, x, weight, EPS, out, weight_offset=1.0)
    assert_close(out, reference(x, weight.double() + 1, None, False), ROUNDING[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_without_delta_does_not_change_x(gpu: Gpu, dtype) -> None:
    make = Inputs(1, dtype)
    x, weight = make.normal(9, 1000, dtype=torch.float32), make.normal(1000)
    before, out = x.clone(), poisoned(9, 1000, dtype=dtype)
    norm(gpu, x, weight, EPS, out)
    assert torch.equal(x, before)
    assert_close(out, reference(x, weight, None, False), ROUNDING[dtype])


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    make = Inputs(2)
    x, weight, out = make.normal(4, 64), make.normal(64), make.normal(4, 64)
    with pytest.raises(ValueError, match=r"weight must be .*64"):
        norm(gpu, x, make.normal(65), EPS, out)
    with pytest.raises(ValueError, match=r"x must be torch\.float32"):
        norm(gpu, x.half(), weight, EPS, out)
    with pytest.raises(ValueError, match="contiguous"):
        norm(gpu, x, weight, EPS, make.normal(64, 4).T)
