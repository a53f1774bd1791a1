"""gated_norm against fp64."""

import pytest
import torch
import torch.nn.functional as F

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.steps import gated_norm
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned
from tests.support.kernels.mixer_steps import FP32_TOLERANCE

pytestmark = pytest.mark.gpu
EPS = 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("n", "width", "groups"),
    # Every layout, whole and part.
    [(1, 3072, 1), (3, 8192, 8), (2, 8192, 1), (2, 12_000, 1), (5, 48, 6), (9, 1008, 4)],
)
@pytest.mark.parametrize("shared", [False, True])
def test_equals_fp64(
    gpu: Gpu, dtype, gated: bool, n: int, width: int, groups: int, shared: bool
) -> None:
    make = Inputs(n * width, dtype)
    size = width // groups if shared else width
    x, weight = (make.normal(*shape, dtype=torch.float32) for shape in ((n, width), (size,)))
    wide = make.normal(n, width + 33)
    out = poisoned(n, width, dtype=dtype)
    gated_norm(
        gpu,
        x,
        weight,
        out,
        num_groups=groups,
        eps=EPS,
        gates=wide[:, :width] if gated else None,
        gate_scale=1.3,
    )
    grouped = x.double().view(n, groups, -1)
    expected = F.rms_norm(grouped, grouped.shape[2:], eps=EPS).view(n, -1, size)
    expected = (expected * weight.double()).view(n, width)
    if gated:
        expected = expected * F.silu(1.3 * wide[:, :width].double())
    assert_close(out, expected, max(ROUNDING[dtype], FP32_TOLERANCE))


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    make = Inputs(1)
    x, weight, out = make.normal(2, 48), make.normal(48), make.normal(2, 48)
    with pytest.raises(ValueError, match="5 groups of 48"):
        gated_norm(gpu, x, weight, out, num_groups=5, eps=EPS)
    with pytest.raises(ValueError, match="gates must be"):
        gated_norm(gpu, x, weight, out, num_groups=2, eps=EPS, gates=make.normal(2, 40))
