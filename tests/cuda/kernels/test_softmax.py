"""softmax against fp64. Tolerance 1e-6: roundings of a difference, an exponential and a sum."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.softmax import softmax
from tests.support.kernel_case import Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("vocab", [1, 97, 4096, 50_257, 128_256, 262_144])
@pytest.mark.parametrize("scale", [0.01, 1.0, 20.0])
def test_softmax(gpu: Gpu, vocab: int, scale: float) -> None:
    logits = Inputs(vocab).normal(3, vocab, scale=scale)
    logits[1] -= 1000
    logits[2, vocab // 3] = -3e38
    out = poisoned(3, vocab, dtype=torch.float32)
    softmax(gpu, logits, out)
    expected = logits.double().softmax(1)
    for row in range(3):
        assert_close(out[row], expected[row], 1e-6)
    assert (out.double().sum(1) - 1).abs().max() < 1e-6
    large = expected > 1e-8  # each for itself, for its logarithm
    assert ((out.double() - expected).abs() <= 4e-6 * expected)[large].all()


def test_equal_and_one_hot_rows(gpu: Gpu) -> None:
    logits = torch.full((2, 1000), -5.0, device="cuda")
    logits[1, 999] = 300
    out = poisoned(2, 1000, dtype=torch.float32)
    softmax(gpu, logits, out)
    assert_close(out[0], torch.full((1000,), 1e-3, device="cuda"), 1e-6)
    assert out[1, 999] == 1 and out[1, :999].count_nonzero() == 0


def test_rows_that_are_no_numbers_show_it(gpu: Gpu) -> None:
    logits = Inputs(1).normal(3, 5000)
    logits[1, 4000] = torch.nan
    out = poisoned(3, 5000, dtype=torch.float32)
    softmax(gpu, logits, out)
    assert out[1].isnan().all() and out[[0, 2]].isfinite().all()


def test_wrong_tensors_are_refused(gpu: Gpu) -> None:
    logits = torch.zeros(3, 10, device="cuda")
    with pytest.raises(ValueError, match="out must be"):
        softmax(gpu, logits, logits[:2])
    with pytest.raises(ValueError, match="logits must be"):
        softmax(gpu, logits.half(), logits)
