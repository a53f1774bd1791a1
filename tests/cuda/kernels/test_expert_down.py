"""expert_down against fp64: see `check_down`."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.experts import expert_down
from tests.support.kernels.case import Inputs
from tests.support.kernels.experts import (
    DOWN_SIZES,
    PACKED_CASES,
    PLAIN_CASES,
    Case,
    Experts,
    check_down,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", [*PLAIN_CASES, *PACKED_CASES])
@pytest.mark.parametrize("size", DOWN_SIZES)
def test_down_equals_fp64(gpu: Gpu, case: Case, size: tuple[int, int, int, int, int]) -> None:
    check_down(gpu, case, size)


@pytest.mark.parametrize("case", PLAIN_CASES)
@pytest.mark.parametrize("size", [(3, 5, 2, 24, 41), (2, 4, 1, 4104, 33)])
def test_columns_that_are_no_whole_steps(
    gpu: Gpu, case: Case, size: tuple[int, int, int, int, int]
) -> None:
    check_down(gpu, case, size)


def test_unsupported_shapes_raise(gpu: Gpu) -> None:
    make = Inputs(1, torch.bfloat16)
    ids, weights = make.integers(0, 1, 2, 3), make.normal(2, 3, dtype=torch.float32)
    out = make.normal(2, 8, dtype=torch.float32)
    plain, mxfp4 = (
        Experts(make, scheme, group, (2, 8, 32)).matrices(biased=True)
        for scheme, group in (("PLAIN", 0), ("MXFP4", 32))
    )
    with pytest.raises(ValueError, match="float32"):
        expert_down(gpu, make.normal(2, 3, 32).float(), mxfp4, ids, weights, out)
    with pytest.raises(ValueError, match="matrices must be"):
        expert_down(gpu, make.normal(2, 3, 16), plain, ids, weights, out)
    with pytest.raises(ValueError, match="out must be"):
        expert_down(gpu, make.normal(2, 3, 32), plain, ids, weights, out.half())
