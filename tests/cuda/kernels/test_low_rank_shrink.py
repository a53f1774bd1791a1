"""low_rank_shrink against fp64."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.linear import Norm
from swiftchat.cuda.ops.linear.low_rank import low_rank_shrink, table_entry
from tests.support.kernels.case import DTYPES, Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu
MAX_PARTS, MAX_RANK, EPS = 1, 48, 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(("n", "k"), [(1, 4096), (7, 520), (16, 14336)])
def test_elements_within_the_rank_are_written(
    gpu: Gpu, dtype: torch.dtype, has_norm: bool, n: int, k: int
) -> None:
    make = Inputs(n + k, dtype)
    x = make.normal(n, k, dtype=torch.float32 if has_norm else dtype)
    weight = make.normal(k)
    matrices = [make.normal(rank, k, scale=k**-0.5) for rank in (24, 48, 8)]
    rows = [table_entry(a, (), MAX_PARTS) for a in matrices]
    table = torch.tensor(rows, device=gpu.device)
    numbers = [i % 4 - 1 for i in range(n)]  # none, 0, 1, 2, none ...
    sets = torch.tensor(numbers, dtype=torch.int32, device=gpu.device)
    narrow = poisoned(n, MAX_RANK, dtype=torch.float32)
    before = narrow.clone()
    low_rank_shrink(gpu, x, table, sets, narrow, norm=Norm(weight, EPS, 1.0) if has_norm else None)
    inputs = x.double()
    if has_norm:
        inputs *= (inputs.square().mean(-1, keepdim=True) + EPS).rsqrt() * (weight.double() + 1)
    for i, number in enumerate(numbers):
        rank = 0 if number < 0 else len(matrices[number])
        assert torch.equal(narrow[i, rank:].view(torch.int32), before[i, rank:].view(torch.int32))
        if rank:
            assert_close(narrow[i, :rank], matrices[number].double() @ inputs[i], 1e-5)
