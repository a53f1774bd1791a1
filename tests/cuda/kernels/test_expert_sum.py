"""expert_sum against fp64. Tolerance: fp32 sums of a few products."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.grouped_experts import expert_sum
from tests.support.kernels.case import DTYPES, Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "chosen", "size"), [(1, 1, 8), (17, 4, 2880), (333, 10, 2056)])
def test_sums_equal_fp64(gpu: Gpu, dtype: torch.dtype, n: int, chosen: int, size: int) -> None:
    make = Inputs(size, dtype)
    parts, weights = make.normal(n, chosen, size), make.normal(n, chosen, dtype=torch.float32)
    out = poisoned(n, size, dtype=torch.float32)
    expert_sum(gpu, parts, weights, out)
    assert_close(out, (parts.double() * weights.double().unsqueeze(2)).sum(1), 1e-6)
    expert_sum(gpu, parts, None, out)
    assert_close(out, parts.double().sum(1), 1e-6)


def test_wrong_sizes_raise(gpu: Gpu) -> None:
    make = Inputs(1)
    with pytest.raises(ValueError, match="12 elements"):
        expert_sum(gpu, make.normal(3, 2, 12), make.normal(3, 2), make.normal(3, 12))
    with pytest.raises(ValueError, match="weights must be"):
        expert_sum(gpu, make.normal(3, 2, 16), make.normal(3, 1), make.normal(3, 16))
