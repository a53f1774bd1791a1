"""Calls of experts whose routes are given, against torch in fp64."""

from collections.abc import Callable

import torch
from torch import Tensor

from swiftchat.engine.cpu import native
from swiftchat.engine.cpu.native import Format
from swiftchat.engine.cpu.references import References
from swiftchat.engine.cpu.routed_experts import InputLayout, RoutedExperts
from tests.engine.cpu.test_moe import Case, Layer
from tests.support.cases import each_case
from tests.support.native.ops import aligned, each_variant, pool

MAX_ROWS = 40
CASES = {
    "bf16, odd sizes": Case(hidden_size=33, expert_size=17),
    "fp32 and fp16": Case(Format.F32, Format.F16),
    "no gate": Case(gated=False),
    "int4": Case(Format.INT4, Format.INT4),
    "int8": Case(Format.INT8, Format.INT8),
    "e2m1, clamped, biases": Case(Format.E2M1, Format.E2M1, gate_limit=1.5, has_bias=True),
    "exact": Case(Format.INT4, Format.INT8, exact=True, has_bias=True),
    "many experts": Case(Format.INT8, Format.BF16, num_experts=65, experts_per_token=7),
    "all experts": Case(num_experts=3, experts_per_token=3),
}


class Calls:
    """Two layers' experts in memory that ends where it must."""

    def __init__(self, variant: str, case: Case, num_threads: int = 2) -> None:
        self.layers = [Layer(case), Layer(case)]
        self.case, layout = case, InputLayout(case.hidden_size, case.experts_per_token)
        self.layout = layout
        self.inputs = aligned(torch.full((layout.num_words(MAX_ROWS),), torch.nan))
        self.sums = aligned(torch.full((MAX_ROWS * case.hidden_size,), torch.nan))
        ops = {number: self._op(layer) for number, layer in enumerate(self.layers)}
        memory = layout, self.inputs, self.sums
        self.experts = RoutedExperts(pool(variant, num_threads), ops, References(), *memory)
        self._function: Callable[[int], None] = pool(variant, num_threads).library.run_host_call

    def use(self, call: Callable[[int], None]) -> None:
        """Let `call` make the call at an address."""
        self._function = call

    def _op(self, layer: Layer) -> native.MoeOp:
        """Return the operation without a router, which is not to be read."""
        op = native.MoeOp.from_buffer_copy(layer.op)
        op.router, op.shared_router, op.router_bias = native.Matrix(), native.Matrix(), None
        return op

    def compute(self, layer: int, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Return the sums of the rows; what is behind them stays as it was."""
        n = len(x)
        self.inputs[:], self.sums[:] = torch.nan, torch.nan
        parts = (x, chosen.int().view(torch.float32), weights)
        for at, part in zip((0, *self.layout.begins(n)), parts, strict=True):
            self.inputs[at : at + part.numel()] = part.reshape(-1)
        self._function(self.experts.call(layer, n))
        assert self.sums[n * self.case.hidden_size :].isnan().all()
        return self.sums[: n * self.case.hidden_size].view(n, -1).clone()

    def expected(self, layer: int, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros(x.shape, dtype=torch.float64)
        for row, (experts, factors) in enumerate(
            zip(chosen.tolist(), weights.tolist(), strict=True)
        ):
            for expert, factor in zip(experts, factors, strict=True):
                out[row] += factor * self.layers[layer]._mlp(x[row].double(), expert)
        return out


def routes(case: Case, n: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, case.hidden_size, generator=generator)
    order = torch.rand(n, case.num_experts, generator=generator).argsort(1)
    weights = torch.rand(n, case.experts_per_token, generator=generator) - 0.2
    return x, order[:, : case.experts_per_token].int(), weights


@each_variant
@each_case("num_rows", [1, 2, 7, MAX_ROWS])
@each_case("name", CASES)
def test_sums(variant: str, name: str, num_rows: int) -> None:
    calls, case = Calls(variant, CASES[name]), CASES[name]
    inputs = routes(case, num_rows)
    tolerance = 1e-5 if case.exact else 2e-4  # as in test_moe.py
    for layer in (1, 0, 1):
        found, expected = calls.compute(layer, *inputs).double(), calls.expected(layer, *inputs)
        assert (found - expected).norm() <= tolerance * expected.norm()
    assert torch.equal(found.float(), Calls(variant, case, 5).compute(1, *inputs))


@each_variant
def test_experts_that_do_not_exist_have_no_weight(variant: str) -> None:
    case = CASES["many experts"]
    calls = Calls(variant, case)
    for n in (1, 4):
        x, chosen, weights = routes(case, n)
        chosen[0, :3] = torch.tensor([-1, case.num_experts, 2**31 - 1], dtype=torch.int32)
        weights[0, :3] = torch.nan
        exists = (chosen >= 0) & (chosen < case.num_experts)
        expected = calls.expected(0, x, chosen.where(exists, 0), weights.where(exists, 0.0))
        found = calls.compute(0, x, chosen, weights).double()
        assert (found - expected).norm() <= 2e-4 * expected.norm()


@each_variant
def test_an_expert_may_be_chosen_twice(variant: str) -> None:
    case = CASES["int4"]
    calls = Calls(variant, case)
    for n in (1, 3):
        x, chosen, weights = routes(case, n)
        chosen[:] = 4
        found, expected = (f(0, x, chosen, weights) for f in (calls.compute, calls.expected))
        assert (found.double() - expected).norm() <= 2e-4 * expected.norm()


@each_variant
def test_calls_stay_valid(variant: str) -> None:
    """A graph has the address of a call for as long as it exists."""
    calls = Calls(variant, CASES["int8"])
    inputs, address = routes(CASES["int8"], 2), calls.experts.call(0, 2)
    first = calls.compute(0, *inputs)
    for n in range(1, MAX_ROWS):
        calls.experts.call(1, n)
    assert calls.experts.call(0, 2) == address
    assert torch.equal(calls.compute(0, *inputs), first)
