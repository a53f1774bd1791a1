"""Linear operations against torch in fp64."""

from collections.abc import Sequence
from ctypes import POINTER, cast
from dataclasses import dataclass
from functools import lru_cache

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, rms_norm, silu

from swiftchat.engine.cpu.native import (
    Activation,
    Epilogue,
    Format,
    LinearOp,
    Matrix,
    Norm,
    NormKind,
    OpHeader,
    RowSet,
)
from tests.support.cases import each_case
from tests.support.native.ops import (
    aligned,
    each_variant,
    float_matrix,
    norm,
    run_inputs,
    run_ops,
)
from tests.support.native.tiles import Layout, random_tiles


@dataclass(frozen=True)
class Part:
    """One of the matrices of an operation, its fp64 values, and what holds its memory."""

    matrix: Matrix
    dequantized: Tensor
    tensors: tuple[Tensor, ...]

    @property
    def is_quantized(self) -> bool:
        return self.matrix.format >= Format.INT2


Kind = torch.dtype | Layout
INT4, INT4_MINIMUM = Layout(Format.INT4, 32), Layout(Format.INT4, 32, has_minimum=True)
INT8, INT8_16 = Layout(Format.INT8, 32), Layout(Format.INT8, 16)
KINDS: tuple[Kind, ...] = (
    INT4,
    INT4_MINIMUM,
    INT8,
    INT8_16,
    Layout(Format.INT8, 0),
    torch.float32,
    torch.bfloat16,
)


# All variants of a case, which come one after the other, read the same matrices.
@lru_cache(maxsize=16)
def random_part(kind: Kind, rows: int, cols: int, seed: int = 0) -> Part:
    if isinstance(kind, Layout):
        tiles = random_tiles(kind, rows, cols, seed)
        return Part(tiles.matrix, tiles.dequantized, tiles.tensors)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(rows, cols, generator=generator).to(kind)
    return Part(float_matrix(weights), weights.double(), (weights,))


@dataclass(frozen=True)
class Linear:
    """An operation without its buffers, in torch's terms."""

    parts: Sequence[Part]
    epilogue: Epilogue = Epilogue.STORE
    activation: Activation = Activation.NONE
    bias: Tensor | None = None
    norm_kind: NormKind = NormKind.NONE
    norm_weight: Tensor | None = None
    exact: bool = False

    @property
    def rows(self) -> int:
        return sum(part.matrix.rows for part in self.parts)

    @property
    def cols(self) -> int:
        return self.parts[0].matrix.cols

    @property
    def width(self) -> int:
        return self.rows // 2 if self.epilogue == Epilogue.ACT_AND_MUL else self.rows

    def op(self, row_set: RowSet, x: int, out: int) -> LinearOp:
        matrices = (Matrix * len(self.parts))(*(part.matrix for part in self.parts))
        weight = self.norm_weight
        bias = weight if self.norm_kind == NormKind.LAYER else None
        return LinearOp(
            header=OpHeader(row_set=row_set),
            x=x,
            out=out,
            epilogue=self.epilogue,
            activation=self.activation,
            num_parts=len(matrices),
            rows=self.rows,
            exact=self.exact,
            parts=cast(matrices, POINTER(Matrix)),
            bias=None if self.bias is None else self.bias.data_ptr(),
            norm=Norm() if weight is None else norm(self.norm_kind, weight, bias),
        )

    def run(self, variant: str, x: Tensor, out: Tensor, num_threads: int = 2) -> Tensor:
        """Return what the native operation makes of x [n, cols] and out [n, width]."""
        buffers = [(RowSet.TOKENS, x.shape[1]), (RowSet.TOKENS, out.shape[1])]
        op = self.op(RowSet.TOKENS, 0, 1)
        inputs = run_inputs(len(x))
        return run_ops(variant, [op], buffers, {0: x, 1: out}, inputs, num_threads)[1]

    def normalized(self, x: Tensor) -> Tensor:
        """Return the input of the matrices, fp64."""
        x, weight, shape = x.double(), self.norm_weight, (x.shape[1],)
        if self.norm_kind == NormKind.NONE or weight is None:
            return x
        if self.norm_kind == NormKind.RMS:
            return rms_norm(x, shape, weight.double(), 1e-6)
        return layer_norm(x, shape, weight.double(), weight.double(), 1e-6)

    def expected(self, x: Tensor, out: Tensor) -> Tensor:
        y = torch.cat([self.normalized(x) @ part.dequantized.T for part in self.parts], 1)
        if self.bias is not None:
            y = y + self.bias.double()
        match self.epilogue:
            case Epilogue.ADD:
                return out.double() + y
            case Epilogue.ACT:
                return activate(self.activation, y)
            case Epilogue.ACT_AND_MUL:
                gate, up = y.chunk(2, 1)
                return activate(self.activation, gate) * up
        return y

    def tolerance(self, x: Tensor) -> float:
        """Bound the error of y.

        Quantization: half a step of a block's largest activation, 2^-16 of it; each sum is rounded
        a few times per block or per element, with 2^-24. A bf16 GEMM rounds activations to bf16.
        """
        x = self.normalized(x).abs()
        largest = x.max(1, keepdim=True).values
        bounds = []
        for part in self.parts:
            weights = part.dequantized.abs()
            bound = x @ weights.T * (self.cols / 16 + 16) * 2**-24
            # A minimum and a scale may cancel each other.
            bound = bound + (largest @ weights.sum(1, keepdim=True).T) * (self.cols / 16) * 2**-22
            if part.is_quantized and not self.exact:
                bound = bound + (largest @ weights.sum(1, keepdim=True).T) * 2**-16
            if part.matrix.format == Format.BF16 and not self.exact and len(x) > 8:
                bound = bound + x @ weights.T * 2**-8
            bounds.append(bound.max())
        # Norms are exact to 2^-20.
        return float(torch.stack(bounds).max()) + float((x @ weights.T).max()) * 2**-20

    def check(self, variant: str, num_rows: int, num_threads: int = 2, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(num_rows, self.cols, generator=generator)
        out = torch.randn(num_rows, self.width, generator=generator)
        found = self.run(variant, x, out, num_threads)
        expected, atol = self.expected(x, out), self.tolerance(x)
        if self.epilogue == Epilogue.ACT_AND_MUL:
            # Errors of gate and up, times the other; activations have slopes up to 1.2.
            y = Linear(
                self.parts, bias=self.bias, norm_weight=self.norm_weight, norm_kind=self.norm_kind
            )
            atol *= 2.4 * float(y.expected(x, out).abs().max())
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1.2 * atol)
        return found


def activate(activation: Activation, x: Tensor) -> Tensor:
    return {Activation.NONE: x, Activation.SILU: silu(x), Activation.GELU: gelu(x)}[activation]


@each_variant
@each_case("kind", KINDS)
@each_case("num_rows", [1, 2, 5, 8, 9, 40])
def test_one_matrix(variant: str, num_rows: int, kind: Kind) -> None:
    for rows, cols in ((1, 1), (37, 33), (530, 80), (64, 257)):
        Linear([random_part(kind, rows, cols)]).check(variant, num_rows)


@each_variant
@each_case("num_rows", [1, 3, 20])
@each_case("kind", [INT4, INT8_16, torch.bfloat16])
def test_parts_of_any_height(variant: str, kind: Kind, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(1)
    parts = [random_part(kind, rows, 96, rows) for rows in (48, 7, 130, 16, 1)]
    bias = torch.randn(202, generator=generator)
    Linear(parts, bias=bias).check(variant, num_rows)


@each_variant
@each_case("num_rows", [1, 8, 30])
def test_parts_of_different_formats(variant: str, num_rows: int) -> None:
    kinds: list[Kind] = [INT4_MINIMUM, torch.bfloat16, INT8_16, torch.float32]
    parts = [
        random_part(kind, rows, 200, rows)
        for kind, rows in zip(kinds, (40, 33, 64, 5), strict=True)
    ]
    weight = torch.rand(200, generator=torch.Generator().manual_seed(2)) + 0.5
    linear = Linear(parts, norm_kind=NormKind.RMS, norm_weight=weight)
    linear.check(variant, num_rows)


@each_variant
@each_case("num_rows", [1, 7, 33])
@each_case("kind", [INT4, torch.float32])
@each_case("norm_kind", list(NormKind))
@each_case(
    ("epilogue", "activation"),
    [
        (Epilogue.STORE, Activation.NONE),
        (Epilogue.ADD, Activation.NONE),
        (Epilogue.ACT, Activation.GELU),
        (Epilogue.ACT_AND_MUL, Activation.SILU),
    ],
)
def test_epilogues(
    variant: str,
    epilogue: Epilogue,
    activation: Activation,
    norm_kind: NormKind,
    kind: Kind,
    num_rows: int,
) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.rand(70, generator=generator) + 0.5
    for bias in (None, torch.randn(96, generator=generator)):
        for heights in ((96,), (48, 48), (32, 16, 20, 28)):
            parts = [random_part(kind, rows, 70, i) for i, rows in enumerate(heights)]
            linear = Linear(parts, epilogue, activation, bias, norm_kind, weight)
            linear.check(variant, num_rows)


@each_variant
@each_case("num_rows", [1, 6, 25])
@each_case("kind", [INT8, torch.bfloat16])
@each_case("norm_kind", [NormKind.NONE, NormKind.RMS])
def test_added_to_its_own_input(
    variant: str, norm_kind: NormKind, kind: Kind, num_rows: int
) -> None:
    generator = torch.Generator().manual_seed(4)
    weight = torch.rand(300, generator=generator) + 0.5
    linear = Linear(
        [random_part(kind, 300, 300)], Epilogue.ADD, norm_kind=norm_kind, norm_weight=weight
    )
    x = torch.randn(num_rows, 300, generator=generator)
    op = linear.op(RowSet.TOKENS, 0, 0)
    buffers = [(RowSet.TOKENS, 300)]
    found = run_ops(variant, [op], buffers, {0: x}, run_inputs(num_rows))[0]
    expected = linear.expected(x, x)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=linear.tolerance(x))


@each_variant
@each_case("kind", [INT4, INT8_16])
@each_case("num_rows", [1, 12])
def test_exact(variant: str, kind: Kind, num_rows: int) -> None:
    for rows, cols in ((530, 80), (37, 257)):
        Linear([random_part(kind, rows, cols)], exact=True).check(variant, num_rows)


@each_variant
@settings(max_examples=10, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    heights=st.lists(st.integers(1, 150), min_size=1, max_size=3),
    cols=st.integers(1, 300),
    num_rows=st.integers(1, 20),
    num_threads=st.integers(1, 3),
    seed=st.integers(0, 100),
)
def test_any_shape(
    variant: str,
    kind: Kind,
    heights: list[int],
    cols: int,
    num_rows: int,
    num_threads: int,
    seed: int,
) -> None:
    parts = [random_part(kind, rows, cols, seed + i) for i, rows in enumerate(heights)]
    Linear(parts).check(variant, num_rows, num_threads, seed)


@each_variant
@each_case("kind", [INT4, INT4_MINIMUM, INT8_16])
def test_quantized_results_do_not_depend_on_batch_and_threads(variant: str, kind: Kind) -> None:
    """GEMV and GEMM, alone or among others, on any number of threads: the same bits."""
    generator = torch.Generator().manual_seed(5)
    parts = [random_part(kind, 300, 200), random_part(kind, 20, 200)]
    weight = torch.rand(200, generator=generator) + 0.5
    linear = Linear(parts, norm_kind=NormKind.RMS, norm_weight=weight)
    x = torch.randn(40, 200, generator=generator)
    out = torch.zeros(40, 320)
    together = linear.run(variant, x, out)
    for num_threads in (1, 3):
        assert torch.equal(linear.run(variant, x, out, num_threads), together)
    for rows in (slice(0, 1), slice(7, 15), slice(20, 29)):
        assert torch.equal(linear.run(variant, x[rows], out[rows]), together[rows])


@each_variant
@each_case("num_rows", [1, 12])
def test_rows_of_logits(variant: str, num_rows: int) -> None:
    linear = Linear([random_part(INT8, 70, 64)])
    x = torch.randn(num_rows, 64, generator=torch.Generator().manual_seed(6))
    op = linear.op(RowSet.LOGITS, 0, 1)
    buffers = [(RowSet.LOGITS, 64), (RowSet.LOGITS, 70)]
    inputs = run_inputs(30, logits_rows=range(num_rows))
    found = run_ops(variant, [op], buffers, {0: x}, inputs)[1]
    expected = linear.expected(x, found)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=linear.tolerance(x))


@each_variant
def test_a_nan_stays_in_its_row(variant: str) -> None:
    linear = Linear([random_part(INT4, 70, 64), random_part(torch.bfloat16, 10, 64)])
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(7))
    x[1, 5] = torch.nan
    found = linear.run(variant, x, aligned(torch.zeros(3, 80)))
    assert found[1].isnan().all() and found[[0, 2]].isfinite().all()
