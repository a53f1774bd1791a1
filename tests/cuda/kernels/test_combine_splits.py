"""combine_splits against fp64; sums of splits without a visible key are NaN."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.combine_splits import combine_splits, new_partials
from tests.support.kernels.case import Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # one rounding to T


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("head_dim", [8, 64, 80, 128, 136, 256])
@pytest.mark.parametrize("num_splits", [1, 2, 7, 32])
def test_combine_splits(gpu: Gpu, dtype: torch.dtype, head_dim: int, num_splits: int) -> None:
    num_tokens, num_heads, padding = 5, 3, 2
    make = Inputs(num_splits, torch.float32)
    out = poisoned(num_tokens + padding, num_heads, head_dim, dtype=dtype)
    rows = (num_splits, num_tokens + padding, num_heads)
    sums, totals = make.normal(*rows, head_dim), make.normal(*rows).abs() + 0.1
    greatest = make.normal(*rows, scale=20)
    # Some splits see no key, and the rows of one token none at all.
    hidden = make.normal(*rows) > 0.8
    hidden[:, 1] = True
    greatest[hidden], totals[hidden] = -torch.inf, 0
    sums[hidden] = torch.nan
    partials = new_partials(gpu, num_splits, out)
    partials.copy_(torch.cat([sums.flatten(), torch.stack([greatest, totals], -1).flatten()]))
    starts = torch.tensor([0, 2, num_tokens], dtype=torch.int32, device=gpu.device)
    combine_splits(gpu, partials, starts, num_splits, out)
    weights = (greatest.double() - greatest.double().amax(0)).exp2().where(~hidden, 0.0)
    total = (weights * totals.double()).sum(0)
    values = (weights[..., None] * sums.double().nan_to_num()).sum(0)
    expected = torch.where(total[..., None] > 0, values / total[..., None], 0.0)
    assert_close(out[:num_tokens], expected[:num_tokens], TOLERANCE[dtype])
    assert out[num_tokens:].isnan().all()


def test_invalid_arguments(gpu: Gpu) -> None:
    out = torch.empty(2, 3, 64, dtype=torch.bfloat16, device=gpu.device)
    starts = torch.tensor([0, 2], dtype=torch.int32, device=gpu.device)
    partials = new_partials(gpu, 2, out)
    with pytest.raises(ValueError, match="33 splits"):
        combine_splits(gpu, partials, starts, 33, out)
    with pytest.raises(ValueError, match="partials"):
        combine_splits(gpu, partials, starts, 3, out)
    with pytest.raises(ValueError, match="bf16 or fp16"):
        combine_splits(gpu, partials, starts, 2, out.float())
