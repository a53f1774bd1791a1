"""route against fp64: equal experts; weights differ by an exponential and the order of a sum."""

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.route import Routing, route
from swiftchat.engine.reference import routing
from swiftchat.weights.architectures.parts.router import RouterConfig
from tests.support.kernels.case import Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu
SIZES = [(1, 128, 8), (16, 8, 2), (5, 60, 4), (3, 7, 7), (2, 1000, 3)]


def run(
    gpu: Gpu, logits: Tensor, chosen: int, how: Routing, **biases: Tensor | None
) -> tuple[Tensor, Tensor]:
    n = len(logits)
    ids, weights = poisoned(n, chosen, dtype=torch.int32), poisoned(n, chosen, dtype=torch.float32)
    route(gpu, logits, ids, weights, how, **biases)
    return ids, weights


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(("n", "experts", "chosen"), SIZES)
def test_route_equals_fp64(gpu: Gpu, normalized: bool, n: int, experts: int, chosen: int) -> None:
    logits = Inputs(n * experts).normal(n, experts, scale=3)
    logits[0, -2:] = logits.max() + 1  # a tie
    ids, weights = run(gpu, logits, chosen, Routing(normalized=normalized))
    exact, order = logits.double().softmax(-1).sort(dim=-1, descending=True, stable=True)
    expected = exact[:, :chosen]
    if normalized:
        expected = expected / expected.sum(-1, keepdim=True)
    assert torch.equal(ids.long(), order[:, :chosen])
    assert_close(weights, expected, 2e-6)


# (experts, chosen), and the routers of DeepSeek V2, DeepSeek V3, GLM-4.5, MiniMax M2 and Llama 4.
ROUTERS = {
    "top group": ((160, 6), RouterConfig(groups=8, top_groups=3, best_of_group=1, scale=16.0)),
    "groups": (
        (256, 8),
        RouterConfig("sigmoid", True, False, 8, 4, 2, True, eps=1e-20, scale=2.5),
    ),
    "one group": ((128, 8), RouterConfig("sigmoid", True, normalized=True, eps=1e-20)),
    "plain sigmoid": ((60, 3), RouterConfig("sigmoid")),
    "corrected softmax": ((64, 6), RouterConfig(correction=True, normalized=True)),
    "by logits": ((16, 2), RouterConfig("sigmoid", True, by_logits=True, scale=0.5)),
    "group of one": ((6, 2), RouterConfig("sigmoid", True, groups=6, top_groups=4)),
    "many groups": ((80, 4), RouterConfig("sigmoid", groups=40, top_groups=33)),
}


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("n", [1, 16, 65])
def test_routers_equal_fp64(gpu: Gpu, name: str, n: int) -> None:
    (experts, chosen), config = ROUTERS[name]
    make = Inputs(n + experts)
    logits, bias = make.normal(n, experts, scale=2), make.normal(experts)
    correction = make.normal(experts, scale=0.3) if config.correction else None
    how = Routing(
        config.scores == "sigmoid",
        config.by_logits,
        config.groups,
        config.top_groups,
        config.best_of_group,
        config.normalized,
        config.eps,
        config.scale,
    )
    ids, weights = run(gpu, logits, chosen, how, bias=bias, correction=correction)
    wide = None if correction is None else correction.double()
    # The sum of logits and bias is rounded to fp32.
    expected, order = routing.route((logits + bias).double(), wide, chosen, config)
    assert torch.equal(ids.long(), order)
    assert_close(weights, expected, 2e-6)


@pytest.mark.parametrize(("n", "experts", "chosen"), SIZES)
def test_scales_of_experts(gpu: Gpu, n: int, experts: int, chosen: int) -> None:
    make = Inputs(n + experts)
    logits, scales = make.normal(n, experts, scale=2), make.normal(experts)
    ids, weights = run(gpu, logits, chosen, Routing(normalized=True), scales=scales)
    config = RouterConfig(normalized=True)
    expected, order = routing.route(logits.double(), None, chosen, config)
    assert torch.equal(ids.long(), order)
    assert_close(weights, expected * scales.double()[order], 2e-6)


def test_nan_score_gives_nan_weights(gpu: Gpu) -> None:
    logits = torch.tensor([[1.0, float("nan"), 2.0]], device="cuda")
    ids, weights = run(gpu, logits, 3, Routing())
    assert ids[0, :2].tolist() == [2, 0]
    assert (ids >= 0).all() and (ids < 3).all()
    assert weights.isnan().all()


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    logits, ids = torch.zeros(2, 4, device="cuda"), poisoned(2, 5, dtype=torch.int32)
    two = ids[:, :2].contiguous()
    with pytest.raises(ValueError, match="5 of 4 experts"):
        route(gpu, logits, ids, logits, Routing())
    with pytest.raises(ValueError, match="weights must be"):
        route(gpu, logits, two, logits, Routing())
    with pytest.raises(ValueError, match="2 of 3 groups of 4 experts"):
        route(gpu, logits, two, two.float(), Routing(num_groups=3, top_groups=2))
    with pytest.raises(ValueError, match="correction must be"):
        route(gpu, logits, two, two.float(), Routing(), correction=logits)
