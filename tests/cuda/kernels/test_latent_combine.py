"""latent_combine against fp64; sums of splits without a token are NaN."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.latent_attention import latent_combine
from tests.support.kernels.case import ROUNDING, Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rank", [256, 512])
@pytest.mark.parametrize("num_splits", [1, 2, 17, 64])
def test_latent_combine(gpu: Gpu, dtype: torch.dtype, rank: int, num_splits: int) -> None:
    make = Inputs(num_splits + rank)
    out = poisoned(5, 3, rank, dtype=dtype)
    rows = (num_splits, 5, 3)
    sums, totals = make.normal(*rows, rank), make.normal(*rows).abs() + 0.1
    greatest = make.normal(*rows, scale=20)
    # Some splits have no token, and the rows of one sequence none at all.
    hidden = make.normal(*rows) > 0.8
    hidden[:, 1] = True
    greatest[hidden], totals[hidden] = -torch.inf, 0
    sums[hidden] = torch.nan
    partials = torch.cat([sums.flatten(), torch.stack([greatest, totals], -1).flatten()])
    latent_combine(gpu, partials, num_splits, out)
    weights = (greatest.double() - greatest.double().amax(0)).exp2().where(~hidden, 0.0)
    total = (weights * totals.double()).sum(0)
    values = (weights[..., None] * sums.double().nan_to_num()).sum(0)
    expected = torch.where(total[..., None] > 0, values / total[..., None], 0.0)
    assert_close(out, expected, ROUNDING[dtype])


def test_invalid_arguments(gpu: Gpu) -> None:
    out = torch.empty(2, 3, 64, dtype=torch.bfloat16, device="cuda")
    with pytest.raises(ValueError, match="65 splits"):
        latent_combine(gpu, torch.empty(65 * 6 * 66, device="cuda"), 65, out)
    with pytest.raises(ValueError, match="partials"):
        latent_combine(gpu, torch.empty(10, device="cuda"), 2, out)
