"""top_logprobs: ids equal to a stable sort, logprobs close to fp64's log-softmax."""

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.sampling.top_logprobs import top_logprobs
from tests.support.kernels.case import Inputs

pytestmark = pytest.mark.gpu
VOCABS = [1, 97, 4096, 4097, 50_257, 128_256, 262_144]


def check(gpu: Gpu, logits: Tensor, num_top: int) -> None:
    logprobs, ids, log_sums = top_logprobs(gpu, logits, num_top)
    order = torch.sort(logits, dim=1, descending=True, stable=True).indices[:, :num_top]
    assert torch.equal(ids.long(), order)
    expected = logits.double().log_softmax(1).gather(1, order)
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-6, atol=5e-6)
    sums = logits.double().logsumexp(1)
    torch.testing.assert_close(log_sums.double(), sums, rtol=1e-6, atol=5e-6)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize(("n", "num_top"), [(1, 1), (4, 12), (16, 64)])
def test_top_logprobs(gpu: Gpu, n: int, num_top: int, vocab: int) -> None:
    make = Inputs(vocab)
    for scale, shift in ((1.0, 0.0), (8.0, -50.0)):
        check(gpu, make.normal(n, vocab, scale=scale) + shift, min(num_top, vocab))


@pytest.mark.parametrize("vocab", [97, 9000])
def test_ties_give_the_lowest_ids(gpu: Gpu, vocab: int) -> None:
    logits = Inputs(1).integers(-3, 4, 5, vocab).float()
    logits[1] = -7.5
    check(gpu, logits, 40)


def test_all_of_a_list_in_one_block(gpu: Gpu) -> None:
    """The largest logits are neighbors: one block has all of them, the others none."""
    logits = Inputs(2).normal(2, 30_000)
    logits[0, 8192 : 8192 + 50] += 100.0
    logits[1, 29_990:] += 100.0
    check(gpu, logits, 50)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rows_with_nan_or_infinity(gpu: Gpu, bad: float) -> None:
    logits = Inputs(3).normal(5, 9000)
    logits[1, 0] = logits[2, 8999] = logits[4, 5000] = bad
    logprobs, ids, log_sums = top_logprobs(gpu, logits, 7)
    rows = [1, 2, 4]
    assert logprobs[rows].isnan().all() and log_sums[rows].isnan().all()
    assert (ids[rows] == 0).all()
    check(gpu, logits[[0, 3]], 7)


def test_rows_of_a_larger_matrix(gpu: Gpu) -> None:
    """They begin at any multiple of 4 bytes."""
    logits = Inputs(4).normal(5, 50_257)
    for row in range(5):
        check(gpu, logits[row : row + 1], 5)


def test_wrong_numbers_raise(gpu: Gpu) -> None:
    logits = torch.zeros(2, 10, device="cuda")
    for num_top in (0, 11):
        with pytest.raises(ValueError, match=f"{num_top} of 10 logits"):
            top_logprobs(gpu, logits, num_top)
    with pytest.raises(ValueError, match="logits must be"):
        top_logprobs(gpu, logits.double(), 1)
