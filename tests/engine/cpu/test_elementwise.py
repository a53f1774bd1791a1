"""Operations on elements, norms and embeddings against torch in fp64."""

from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swiftchat.engine.cpu.native import (
    ActAndMulOp,
    Activation,
    AddScaledOp,
    GatherOp,
    OpHeader,
    RowSet,
    SoftcapOp,
)
from swiftchat.engine.reference.activations import ACTIVATIONS
from tests.support.cases import each_case
from tests.support.native.ops import each_variant, run_inputs, run_ops

TOKENS = OpHeader(row_set=RowSet.TOKENS)
SHAPES = [(1, 1), (1, 33), (3, 576), (70, 129), (2, 9001)]


def inputs(rows: int, width: int, scale: float = 3.0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)) * scale


@each_variant
@each_case("name", ACTIVATIONS)
def test_activations(variant: str, name: str) -> None:
    # Beyond 3 the error of erfc grows with the square, as that of its argument.
    x = torch.cat([torch.linspace(-30, 30, 4001), torch.linspace(-1e-3, 1e-3, 100)]).view(1, -1)
    op = ActAndMulOp(header=TOKENS, x=0, out=1, activation=Activation[name.upper()])
    widths = [(RowSet.TOKENS, x.shape[1])] * 2
    found = run_ops(variant, [op], widths, {0: x}, run_inputs(1))[1].double()
    expected = exact_activation(name)(x.double())
    error = (found - expected).abs() / expected.abs().clamp(min=1e-35)
    usual = x.abs() <= 3
    assert error[usual].max() <= 1e-6
    assert error[~usual & (x > -9)].max() <= 1e-5
    assert (found - expected)[~usual].abs().max() <= 1e-6 * expected.abs().max()


def exact_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation in formulas that do not cancel for negative arguments."""
    if name == "gelu":
        return lambda x: x * torch.special.erfc(-x / 2**0.5) / 2
    if name == "gelu_tanh":
        return lambda x: x * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))
    return ACTIVATIONS[name]


@each_variant
@each_case("name", ACTIVATIONS)
def test_activations_of_nan_and_infinity(variant: str, name: str) -> None:
    x = torch.tensor([[torch.nan, torch.inf, 0.0, -300.0]])
    op = ActAndMulOp(header=TOKENS, x=0, out=0, activation=Activation[name.upper()])
    found = run_ops(variant, [op], [(RowSet.TOKENS, 4)], {0: x}, run_inputs(1))[0]
    expected = torch.tensor([[torch.nan, torch.inf, 0.0, 0.0]])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-35, equal_nan=True)


@each_variant
@each_case("limit", [0.0, 2.5])
@each_case("scale", [0.0, 0.7])
@each_case("shape", SHAPES)
def test_act_and_mul(variant: str, shape: tuple[int, int], scale: float, limit: float) -> None:
    rows, width = shape
    x = inputs(rows, 2 * width)
    op = ActAndMulOp(
        header=TOKENS,
        x=0,
        out=1,
        activation=Activation.SILU,
        gated=1,
        gate_limit=limit,
        gate_scale=scale,
    )
    widths = [(RowSet.TOKENS, 2 * width), (RowSet.TOKENS, width)]
    found = run_ops(variant, [op], widths, {0: x}, run_inputs(rows))[1]
    gate, up = x.double().chunk(2, 1)
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit) + 1
    expected = torch.nn.functional.silu(gate * (scale or 1.0)) * up
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-30)


@each_variant
@each_case("shape", SHAPES)
def test_add_scaled(variant: str, shape: tuple[int, int]) -> None:
    x, out = inputs(*shape), inputs(shape[0], shape[1], 1.0)
    op = AddScaledOp(header=TOKENS, x=0, out=1, alpha=0.5, beta=0.22)
    widths = [(RowSet.TOKENS, shape[1])] * 2
    found = run_ops(variant, [op], widths, {0: x, 1: out}, run_inputs(shape[0]))[1]
    expected = 0.5 * out.double() + 0.22 * x.double()
    torch.testing.assert_close(found.double(), expected, rtol=3e-7, atol=1e-6)


@each_variant
def test_add_scaled_by_zero_replaces_what_is_not_finite(variant: str) -> None:
    x, out = inputs(3, 65), torch.full((3, 65), torch.nan)
    op = AddScaledOp(header=TOKENS, x=0, out=1, alpha=0.0, beta=2.0)
    found = run_ops(variant, [op], [(RowSet.TOKENS, 65)] * 2, {0: x, 1: out}, run_inputs(3))[1]
    assert torch.equal(found, 2 * x)


@each_variant
@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9000), st.sampled_from([1e-3, 1.0, 50.0, 1000.0]))
def test_softcap(variant: str, rows: int, width: int, scale: float) -> None:
    x = inputs(rows, width, scale)
    op = SoftcapOp(header=OpHeader(row_set=RowSet.LOGITS), x=0, cap=30.0)
    run = run_inputs(rows + 2, logits_rows=range(rows))
    found = run_ops(variant, [op], [(RowSet.LOGITS, width)], {0: x}, run)[0]
    expected = 30 * torch.tanh(x.double() / 30)
    torch.testing.assert_close(found.double(), expected, rtol=5e-7, atol=0)


@each_variant
def test_gather(variant: str) -> None:
    x = inputs(50, 123)
    rows = [49, 0, 7, 7, 21]
    op = GatherOp(header=OpHeader(row_set=RowSet.LOGITS), x=0, out=1)
    widths = [(RowSet.TOKENS, 123), (RowSet.LOGITS, 123)]
    found = run_ops(variant, [op], widths, {0: x}, run_inputs(50, logits_rows=rows))[1]
    assert torch.equal(found, x[rows])
