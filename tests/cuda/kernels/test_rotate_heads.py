"""rotate_heads against fp64. Tolerance: one rounding."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.rotate_heads import rotate_heads
from tests.support.kernels.case import ROUNDING, Inputs, assert_close, hadamard_matrix

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (67, 9)])
def test_rotate_heads(gpu: Gpu, dtype: torch.dtype, head_dim: int, shape: tuple[int, int]) -> None:
    rows, heads = shape
    all_rows = Inputs(rows, dtype).normal(rows + 1, heads, head_dim)
    before = all_rows.clone()
    rotate_heads(gpu, all_rows[:rows])
    expected = before.double() @ hadamard_matrix(head_dim)
    assert_close(all_rows[:rows], expected[:rows], ROUNDING[dtype])
    assert torch.equal(all_rows[rows], before[rows])


def test_invalid_arguments(gpu: Gpu) -> None:
    with pytest.raises(ValueError, match="of 64 or 128"):
        rotate_heads(gpu, torch.zeros(2, 80, dtype=torch.bfloat16, device="cuda"))
    with pytest.raises(ValueError, match="bf16 or fp16"):
        rotate_heads(gpu, torch.zeros(2, 64, device="cuda"))
