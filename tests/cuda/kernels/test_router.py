"""router against fp64 logits of its own norm, chosen as `route` does. Tolerances: as there."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.linear import Norm
from swiftchat.cuda.ops.moe.route import RouterWorkspace, Routing, router
from swiftchat.engine.reference import routing
from swiftchat.weights.architectures.parts.router import RouterConfig
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu
GROUPED = RouterConfig(
    scores="sigmoid", correction=True, groups=4, top_groups=2, normalized=True, scale=2.5
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shared", "gate"), [(0, False), (1, True), (2, False)])
@pytest.mark.parametrize("config", [RouterConfig(normalized=True), GROUPED])
@pytest.mark.parametrize(
    ("n", "experts", "chosen", "k"),
    [(1, 128, 8, 2048), (3, 32, 4, 2880), (16, 64, 6, 96), (2, 512, 10, 8), (1, 4, 2, 6152)],
)
def test_router_equals_fp64(
    gpu: Gpu,
    dtype,
    shared: int,
    gate: bool,
    config: RouterConfig,
    n: int,
    experts: int,
    chosen: int,
    k: int,
) -> None:
    make = Inputs(n + experts + k, dtype)
    x, weight = make.normal(n, k, dtype=torch.float32), make.normal(k)
    matrix = make.normal(experts + gate, k, scale=3 * k**-0.5)
    bias = make.normal(experts, dtype=torch.float32)
    correction = make.normal(experts, dtype=torch.float32, scale=0.3) if config.correction else None
    normed = poisoned(n, k, dtype=dtype)
    ids = poisoned(n, chosen + shared, dtype=torch.int32)
    weights = poisoned(n, chosen + shared, dtype=torch.float32)
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
    workspace = RouterWorkspace(gpu, 16, 512)
    for _ in range(2):  # the counters are zero again
        router(
            *(gpu, x, Norm(weight, 1e-5, 0.5), matrix, normed, ids, weights, how, workspace),
            bias=bias,
            correction=correction,
            num_shared=shared,
            shared_gate=gate,
        )
    assert not workspace.counters.any()
    wide = x.double()
    expected = (
        wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * (weight.double() + 0.5)
    )
    assert_close(normed, expected, ROUNDING[dtype])
    logits = normed.double() @ matrix.double().T
    for i in range(shared):
        assert (ids[:, chosen + i] == experts + i).all()
        weight = logits[:, -1].sigmoid() if gate else torch.ones(n, device="cuda")
        assert_close(weights[:, chosen + i], weight, 1e-5)
    logits = logits[:, :experts] + bias.double()
    wide_correction = None if correction is None else correction.double()
    best, order = routing.route(logits, wide_correction, chosen, config)
    # Neighbors in the order may be closer than the rounding of fp32 sums.
    assert (ids[:, :chosen].long() == order).float().mean() > 0.95
    assert_close(weights[:, :chosen], best, 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "experts", "chosen", "k"), [(1, 128, 8, 2816), (5, 5, 2, 48), (2, 16, 4, 6152)]
)
def test_a_norm_of_the_experts_and_scales(
    gpu: Gpu, dtype, n: int, experts: int, chosen: int, k: int
) -> None:
    make = Inputs(n + experts + k, dtype)
    x, weight, own = make.normal(n, k, dtype=torch.float32), make.normal(k), make.normal(k)
    matrix = make.normal(experts, k, scale=3 * k**-0.5)
    scales = make.normal(experts, dtype=torch.float32)
    normed = poisoned(n, k, dtype=dtype)
    ids, weights = poisoned(n, chosen, dtype=torch.int32), poisoned(n, chosen, dtype=torch.float32)
    norm, how, workspace = (
        Norm(weight, 1e-5),
        Routing(normalized=True),
        RouterWorkspace(gpu, 5, 128),
    )
    router(
        *(gpu, x, norm, matrix, normed, ids, weights, how, workspace),
        scales=scales,
        expert_norm=own,
    )
    unit = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    assert_close(normed, unit * own.double(), ROUNDING[dtype])
    logits = (unit * weight.double()).to(dtype).double() @ matrix.double().T
    best, order = routing.route(logits, None, chosen, RouterConfig(normalized=True))
    same = ids.long() == order
    assert same.float().mean() > 0.9
    expected = best * scales.double()[order]
    assert_close(weights[same], expected[same], 10 * ROUNDING[dtype])


def test_unsupported_shapes_raise(gpu: Gpu) -> None:
    make, workspace = Inputs(1, torch.bfloat16), RouterWorkspace(gpu, 2, 8)
    x, norm = make.normal(2, 16, dtype=torch.float32), Norm(make.normal(16), 1e-5)
    ids, weights = poisoned(2, 3, dtype=torch.int32), poisoned(2, 3, dtype=torch.float32)
    rest = (ids, weights, Routing(), workspace)
    with pytest.raises(ValueError, match="3 of 2 experts"):
        router(gpu, x, norm, make.normal(2, 16), make.normal(2, 16), *rest)
    with pytest.raises(ValueError, match="normed must be"):
        router(gpu, x, norm, make.normal(4, 16), make.normal(2, 8), *rest)
    with pytest.raises(ValueError, match="workspace is too small"):
        router(gpu, x, norm, make.normal(16, 16), make.normal(2, 16), *rest)
