"""gather_rows against torch's indexing: bitwise equal."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.layers.embedding import gather_rows
from tests.support.kernels.case import Inputs, poisoned

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("n", "m", "hidden"), [(9, 1, 4096), (70, 70, 576), (5, 12, 3004), (4, 3, 1001), (300, 7, 30)]
)
def test_gather_rows_equals_indexing(gpu: Gpu, n: int, m: int, hidden: int) -> None:
    make = Inputs(n * hidden)
    x, rows = make.normal(n, hidden), make.integers(0, n, m)
    rows[-1] = n - 1
    wanted = torch.zeros(n, dtype=torch.bool, device=x.device)
    wanted[rows.long()] = True
    x[~wanted] = float("nan")
    out = poisoned(m, hidden, dtype=torch.float32)
    gather_rows(gpu, x, rows, out)
    assert torch.equal(out, x[rows])


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    make = Inputs(2)
    x, rows, out = make.normal(8, 64), make.integers(0, 8, 4), make.normal(4, 64)
    with pytest.raises(ValueError, match=r"rows must be torch\.int32"):
        gather_rows(gpu, x, rows.long(), out)
    with pytest.raises(ValueError, match=r"x must be torch\.float32"):
        gather_rows(gpu, x.half(), rows, out)
    with pytest.raises(ValueError, match="out must be"):
        gather_rows(gpu, x, rows, make.normal(3, 64))
    gather_rows(gpu, x, rows[:0], out[:0])
