"""grouped_gate_up against fp64. Tolerance: one rounding of the result."""

from dataclasses import replace

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe import grouped_experts
from swiftchat.cuda.ops.moe.grouped_experts import grouped_gate_up
from tests.support.kernels.case import Inputs, assert_close, poisoned
from tests.support.kernels.grouped_experts import (
    CASES,
    RandomMatrices,
    random_choices,
    sorted_choices,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("kind", "n", "experts", "chosen", "hidden", "inner"), CASES)
def test_gate_up_equals_fp64(
    gpu: Gpu, kind: str, n: int, experts: int, chosen: int, hidden: int, inner: int
) -> None:
    case = RandomMatrices(kind, experts, 2 * inner, hidden)
    dtype = case.dtype
    x, ids = Inputs(n, dtype).normal(n, hidden), random_choices(n, n, experts, chosen)
    rows, order, expert = sorted_choices(gpu, ids, experts)
    products = torch.empty(len(order), 2 * inner, dtype=torch.float64, device="cuda")
    weights = Inputs(n).normal(n, chosen, dtype=torch.float32).sigmoid()
    of_rows = weights.double().flatten()[order.long()].unsqueeze(1)
    for e in range(experts):
        own = expert == e
        products[own] = x.double()[order[own] // chosen] @ case.matrices[e].T
    for matrices, limit, weighs_inputs in (
        (case.plain, 0.0, False),
        (case.plain, 0.0, True),
        (case.biased, 1.5, False),
        (case.biased, 1.5, True),
    ):
        out = poisoned(len(order), inner, dtype=dtype)
        grouped_gate_up(
            *(gpu, x, matrices, rows, out, "gelu_sigmoid"),
            limit=limit,
            input_weights=weights if weighs_inputs else None,
        )
        wide = products * of_rows if weighs_inputs else products
        wide = wide if matrices.biases is None else wide + case.biases[expert]
        gate, up = wide.chunk(2, 1)
        if limit:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit) + 1
        expected = gate * torch.sigmoid(1.702 * gate) * up
        assert_close(out, expected, case.tolerance)


@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4", "float32", "int4-64", "int8"])
def test_rows_do_not_depend_on_the_tiles(
    gpu: Gpu, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16-bit matrices they may: Hopper has another matmul for large tiles."""
    case = RandomMatrices(kind, 4, 192, 320)
    dtype = case.dtype
    x, ids = Inputs(5, dtype).normal(90, 320), random_choices(5, 90, 4, 2)
    rows, *_ = sorted_choices(gpu, ids, 4)
    found = []
    for threshold in (1, 1000):
        monkeypatch.setattr(grouped_experts, "_MIN_LARGE_TILE_ROWS", threshold)
        found.append(poisoned(180, 96, dtype=dtype))
        grouped_gate_up(gpu, x, case.biased, rows, found[-1], "silu")
    assert torch.equal(*found)


def test_replays_read_the_current_choices(gpu: Gpu) -> None:
    case = RandomMatrices("bfloat16", 8, 64, 64)
    dtype = case.dtype
    x, out = Inputs(1, dtype).normal(60, 64), poisoned(120, 32, dtype=torch.bfloat16)
    ids = random_choices(1, 60, 8, 2)

    def run() -> None:
        grouped_gate_up(gpu, x, case.plain, sorted_choices(gpu, ids, 8)[0], out, "silu")

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    ids.copy_(random_choices(2, 60, 8, 2))
    run()
    expected = out.clone()
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, expected)


def test_unsupported_shapes_raise(gpu: Gpu) -> None:
    case = RandomMatrices("mxfp4", 2, 64, 64)
    rows, *_ = sorted_choices(gpu, random_choices(1, 4, 2, 1), 2)
    make = Inputs(1, case.dtype)
    x, out = make.normal(4, 64), make.normal(4, 32)
    for matrices, match in (
        (replace(case.plain, columns=48), "does not take MXFP4 matrices of 64 rows of 48"),
        (replace(case.plain, rows=66), "matrices must be"),
        (replace(case.plain, values=case.plain.values.int()), "values must be"),
    ):
        with pytest.raises(ValueError, match=match):
            grouped_gate_up(gpu, x, matrices, rows, out, "silu")
    with pytest.raises(ValueError, match="MXFP4 matrices with scales"):
        replace(case.plain, scales=case.plain.values)
    with pytest.raises(ValueError, match="out must be"):
        grouped_gate_up(gpu, x, case.plain, rows, make.normal(8, 32), "silu")
    packed = RandomMatrices("int8", 2, 72, 64)
    with pytest.raises(ValueError, match="36 outputs of INT8"):
        grouped_gate_up(gpu, x, packed.plain, rows, make.normal(4, 36), "silu")
