"""route against fp64: equal experts; weights differ by an exponential and the order of a sum."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe import route
from tests.support.kernel_case import Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(
    ("n", "experts", "chosen"), [(1, 128, 8), (16, 8, 2), (5, 60, 4), (3, 7, 7), (2, 1000, 3)]
)
def test_route_equals_fp64(gpu: Gpu, normalized: bool, n: int, experts: int, chosen: int) -> None:
    scores = Inputs(n * experts).normal(n, experts, scale=3)
    scores[0, -2:] = scores.max() + 1  # a tie
    ids, weights = poisoned(n, chosen, dtype=torch.int32), poisoned(n, chosen, dtype=torch.float32)
    route(gpu, scores, ids, weights, renormalize=normalized)
    exact, order = scores.double().softmax(-1).sort(dim=-1, descending=True, stable=True)
    expected = exact[:, :chosen]
    if normalized:
        expected = expected / expected.sum(-1, keepdim=True)
    assert torch.equal(ids.long(), order[:, :chosen])
    assert_close(weights, expected, 2e-6)


def test_nan_score_gives_nan_weights(gpu: Gpu) -> None:
    scores = torch.tensor([[1.0, float("nan"), 2.0]], device="cuda")
    ids, weights = poisoned(1, 3, dtype=torch.int32), poisoned(1, 3, dtype=torch.float32)
    route(gpu, scores, ids, weights, renormalize=False)
    assert ids[0, :2].tolist() == [2, 0]
    assert (ids >= 0).all() and (ids < 3).all()
    assert weights.isnan().all()


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    scores, ids = torch.zeros(2, 4, device="cuda"), poisoned(2, 5, dtype=torch.int32)
    with pytest.raises(ValueError, match="5 of 4 experts"):
        route(gpu, scores, ids, scores, renormalize=True)
    with pytest.raises(ValueError, match="weights must be"):
        route(gpu, scores, ids[:, :2].contiguous(), scores, renormalize=True)
