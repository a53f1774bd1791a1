"""expert_order against a stable sort."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.grouped_experts import expert_order
from tests.support.kernels.case import Inputs
from tests.support.kernels.grouped_experts import random_choices

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("n", "experts", "chosen"),
    [(1, 1, 1), (1, 8, 2), (33, 32, 4), (1000, 64, 6), (2048, 256, 8), (4099, 5, 3), (7, 512, 10)],
)
def test_order_equals_a_stable_sort(gpu: Gpu, n: int, experts: int, chosen: int) -> None:
    ids = random_choices(n, n, experts, chosen)
    found, flat = expert_order(gpu, ids, experts), ids.flatten().long()
    assert torch.equal(found.order.long(), flat.argsort(stable=True))
    ends = torch.bincount(flat, minlength=experts).cumsum(0)
    assert found.starts.tolist() == [0, *ends.tolist()]


def test_all_tokens_choose_one_expert(gpu: Gpu) -> None:
    ids = torch.full((3001, 1), 6, dtype=torch.int32, device="cuda")
    found = expert_order(gpu, ids, 9)
    assert torch.equal(found.order, torch.arange(3001, device="cuda", dtype=torch.int32))
    assert found.starts.tolist() == [0] * 7 + [3001] * 3


def test_wrong_ids_raise(gpu: Gpu) -> None:
    with pytest.raises(ValueError, match="ids must be"):
        expert_order(gpu, Inputs(1).integers(0, 4, 5, 2).long(), 4)
    with pytest.raises(ValueError, match="5000 experts"):
        expert_order(gpu, Inputs(1).integers(0, 4, 5, 2), 5000)
