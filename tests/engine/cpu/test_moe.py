"""Mixtures of experts against torch in fp64."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from swiftchat.engine.cpu.native import (
    ActAndMulOp,
    Activation,
    Expert,
    Format,
    Matrix,
    MoeOp,
    OpHeader,
    RowSet,
)
from tests.support.cases import each_case
from tests.support.native.ops import each_variant, float_matrix, run_inputs, run_ops
from tests.support.native.tiles import LAYOUTS, Layout, random_tiles


@dataclass(frozen=True)
class Case:
    """A layer of experts: formats of the matrices, sizes, and what the layer has."""

    gate_up: Format = Format.BF16
    down: Format = Format.BF16
    num_experts: int = 6
    experts_per_token: int = 2
    hidden_size: int = 80
    expert_size: int = 40
    shared_size: int = 0
    normalized: bool = True
    gated: bool = True
    gate_limit: float = 0.0
    has_bias: bool = False
    exact: bool = False
    router_input: bool = False
    scaled: bool = False


CASES = {
    "float": Case(),
    "fp32, not normalized": Case(Format.F32, Format.F16, normalized=False),
    "no gate": Case(gated=False),
    "int4": Case(Format.INT4, Format.INT4),
    "int4 and int8, shared expert": Case(Format.INT4, Format.INT8, shared_size=72),
    "float and int8": Case(Format.BF16, Format.INT8, shared_size=24),
    "clamped, biases": Case(
        Format.INT4, Format.INT4, gate_limit=1.5, has_bias=True, shared_size=33
    ),
    "e2m1": Case(Format.E2M1, Format.E2M1, gate_limit=1.5, has_bias=True),
    "types of GGUF": Case(Format.IQ2, Format.INT6, shared_size=33),
    "exact": Case(Format.INT4, Format.INT8, shared_size=48, exact=True, has_bias=True),
    "many experts": Case(Format.INT8, Format.BF16, num_experts=65, experts_per_token=7),
    "a router with its own input, scaled experts": Case(router_input=True, scaled=True),
    "the same, int8, shared expert": Case(
        Format.INT8, Format.INT8, router_input=True, scaled=True, shared_size=24
    ),
    "all experts": Case(num_experts=3, experts_per_token=3, hidden_size=33, expert_size=17),
}


class Layer:
    """Random weights of a case; `op` reads their memory."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._generator = torch.Generator().manual_seed(7)
        self._keep: list[object] = []
        hidden, num_experts = case.hidden_size, case.num_experts
        self.router, router = self._matrix(Format.F32, num_experts, hidden)
        self.router_bias = self._vector(num_experts) if case.has_bias else None
        self.scales = self._vector(num_experts) if case.scaled else None
        self.shared_router, shared_router = self._matrix(Format.BF16, 1, hidden)
        sizes = [case.expert_size] * num_experts + ([case.shared_size] if case.shared_size else [])
        self.experts: list[tuple[Tensor, Tensor, Tensor | None, Tensor | None]] = []
        structs = [self._expert(size) for size in sizes]
        self.structs = (Expert * len(structs))(*structs)
        self.op = MoeOp(
            header=OpHeader(row_set=RowSet.TOKENS),
            x=0,
            out=1,
            router_x=2 if case.router_input else 0,
            num_experts=num_experts,
            experts_per_token=case.experts_per_token,
            normalized=case.normalized,
            groups=1,
            top_groups=1,
            scale=1.0,
            hidden_size=hidden,
            expert_size=case.expert_size,
            shared_size=case.shared_size,
            exact=case.exact,
            act=ActAndMulOp(
                activation=Activation.SILU,
                gated=case.gated,
                gate_limit=case.gate_limit,
            ),
            router=router,
            shared_router=shared_router,
            router_bias=None if self.router_bias is None else self.router_bias.data_ptr(),
            expert_scales=None if self.scales is None else self.scales.data_ptr(),
            experts=self.structs,
        )

    def _vector(self, n: int) -> Tensor:
        vector = torch.randn(n, generator=self._generator)
        self._keep.append(vector)
        return vector

    def _matrix(self, format: Format, rows: int, cols: int) -> tuple[Tensor, Matrix]:
        """Return the fp64 values of a random matrix and its description."""
        if format >= Format.INT2:
            layout = Layout(format, 32, has_minimum=True)
            if format not in (Format.INT4, Format.INT8):
                layout = next(layout for layout in LAYOUTS if layout.format == format)
            tiles = random_tiles(layout, rows, cols, len(self._keep))
            self._keep.append(tiles)
            return tiles.dequantized, tiles.matrix
        dtypes = {Format.F32: torch.float32, Format.F16: torch.float16, Format.BF16: torch.bfloat16}
        values = torch.randn(rows, cols, generator=self._generator) / cols**0.5
        matrix = values.to(dtypes[format])
        self._keep.append(matrix)
        return matrix.double(), float_matrix(matrix)

    def _expert(self, size: int) -> Expert:
        case = self.case
        gate_up_rows = size * (2 if case.gated else 1)
        gate_up, gate_up_matrix = self._matrix(case.gate_up, gate_up_rows, case.hidden_size)
        down, down_matrix = self._matrix(case.down, case.hidden_size, size)
        expert = Expert(gate_up=gate_up_matrix, down=down_matrix)
        biases: tuple[Tensor | None, Tensor | None] = (None, None)
        if case.has_bias:
            gate_up_bias, down_bias = self._vector(gate_up_rows), self._vector(case.hidden_size)
            expert.gate_up_bias, expert.down_bias = gate_up_bias.data_ptr(), down_bias.data_ptr()
            biases = (gate_up_bias.double(), down_bias.double())
        self.experts.append((gate_up, down, *biases))
        return expert

    def router_input(self, x: Tensor) -> Tensor:
        return x.roll(1, -1) if self.case.router_input else x

    def expected(self, x: Tensor) -> Tensor:
        """Compute each row by itself, in fp64."""
        case, x = self.case, x.double()
        bias = None if self.router_bias is None else self.router_bias.double()
        weights = linear(self.router_input(x), self.router, bias).softmax(-1)
        scales = torch.ones(case.num_experts) if self.scales is None else self.scales
        out = torch.zeros_like(x)
        for row in range(len(x)):
            top = weights[row].topk(case.experts_per_token)
            total = top.values.sum() if case.normalized else 1.0
            for weight, expert in zip(top.values, top.indices, strict=True):
                scaled = weight / total * scales[expert].double()
                out[row] += scaled * self._mlp(x[row], int(expert))
        if case.shared_size:
            out += linear(x, self.shared_router).sigmoid() * self._mlp(x, -1)
        return out

    def _mlp(self, x: Tensor, expert: int) -> Tensor:
        case = self.case
        gate_up, down, gate_up_bias, down_bias = self.experts[expert]
        inner = linear(x, gate_up, gate_up_bias)
        if not case.gated:
            return linear(silu(inner), down, down_bias)
        gate, up = inner.chunk(2, -1)
        if case.gate_limit:
            gate, up = (
                gate.clamp(max=case.gate_limit),
                up.clamp(-case.gate_limit, case.gate_limit) + 1,
            )
        return linear(silu(gate) * up, down, down_bias)


def compute(variant: str, layer: Layer, x: Tensor, num_threads: int = 2) -> Tensor:
    widths = [(RowSet.TOKENS, layer.case.hidden_size)] * 3
    inputs = {0: x, 2: layer.router_input(x)}
    return run_ops(variant, [layer.op], widths, inputs, run_inputs(len(x)), num_threads)[1]


@each_variant
@each_case("num_rows", [1, 2, 7, 40])
@each_case("name", CASES)
def test_moe(variant: str, name: str, num_rows: int) -> None:
    layer = Layer(CASES[name])
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randn(num_rows, layer.case.hidden_size, generator=generator)
    found, expected = compute(variant, layer, x).double(), layer.expected(x)
    # 16-bit activations err by 2e-5 of a block's largest element, twice; fp32 sums by less.
    tolerance = 1e-5 if layer.case.exact else 2e-4
    assert (found - expected).norm() <= tolerance * expected.norm()
    assert torch.equal(found.float(), compute(variant, layer, x, 5))


@each_variant
def test_equal_scores_choose_the_lower_index(variant: str) -> None:
    layer = Layer(CASES["float"])
    layer.router.zero_()
    ctypes.memset(layer.op.router.data, 0, 4 * layer.router.numel())
    x = torch.randn(3, layer.case.hidden_size, generator=torch.Generator().manual_seed(0))
    expected = (layer._mlp(x.double(), 0) + layer._mlp(x.double(), 1)) / 2
    torch.testing.assert_close(compute(variant, layer, x).double(), expected, rtol=1e-5, atol=1e-5)
