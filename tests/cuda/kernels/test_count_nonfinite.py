"""count_nonfinite: equal to torch's own count."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.count_nonfinite import count_nonfinite
from tests.support.kernel_case import DTYPES, Inputs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 3, 8, 1023, 4097, 100_003, 30_000_001])
def test_count(gpu: Gpu, dtype, size: int) -> None:
    make = Inputs(size, dtype)
    x = make.normal(size)
    for bad in (torch.nan, torch.inf, -torch.inf):
        x[make.integers(0, size, min(size, 50)).long()] = bad
    x[-1] = torch.inf
    out = torch.tensor([1000], device="cuda")
    count_nonfinite(gpu, x, out)
    assert out.item() == 1000 + int((~x.isfinite()).sum())


@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_numbers_of_any_size_and_shape(gpu: Gpu, dtype) -> None:
    x = Inputs(1, dtype).normal(7, 11, 13)
    x[0] = torch.finfo(dtype).max
    x[1] = torch.finfo(dtype).min
    x[2] = torch.finfo(dtype).smallest_normal / 2
    out = torch.zeros(1, dtype=torch.int64, device="cuda")
    count_nonfinite(gpu, x, out)
    assert out.item() == 0
    x[3:] = torch.nan
    count_nonfinite(gpu, x, out)
    count_nonfinite(gpu, x[:0], out)
    assert out.item() == 4 * 11 * 13


def test_wrong_tensors_are_refused(gpu: Gpu) -> None:
    x, out = torch.zeros(8, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    with pytest.raises(ValueError, match="floating-point"):
        count_nonfinite(gpu, x.long(), out)
    with pytest.raises(ValueError, match="out must be"):
        count_nonfinite(gpu, x, out.int())
