"""Causal convolutions of sequences with states against torch in fp64."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.cpu.native import Activation, ConvOp, OpHeader, RowSet
from tests.support.cases import each_case
from tests.support.native import states as native_states
from tests.support.native.ops import each_variant, run_ops
from tests.support.native.states import PARTS, Part


@dataclass(frozen=True)
class Case:
    channels: int = 131
    kernel: int = 4
    gated: bool = False
    has_bias: bool = False
    activation: Activation = Activation.NONE
    first: int = 0
    after: int = 0  # more columns, which the operation must leave as they are

    @property
    def width(self) -> int:
        return 3 * self.channels if self.gated else self.first + self.channels + self.after

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))

    @property
    def weight(self) -> Tensor:
        return self._random(self.kernel, self.channels)

    @property
    def bias(self) -> Tensor | None:
        return self._random(self.channels) if self.has_bias else None

    def rows(self, parts: Sequence[Part]) -> Tensor:
        return self._random(native_states.num_rows(parts), self.width)

    def run(
        self, variant: str, x: Tensor, state: Tensor, parts: Sequence[Part], num_threads: int = 2
    ) -> Tensor:
        """Return the output, and advance the state."""
        weight, bias = self.weight, self.bias
        op = ConvOp(
            header=OpHeader(row_set=RowSet.TOKENS),
            x=0,
            out=int(self.gated),
            first=self.first,
            channels=self.channels,
            kernel=self.kernel,
            activation=self.activation,
            gated=self.gated,
            weight=weight.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            state=state.data_ptr(),
        )
        buffers = [(RowSet.TOKENS, self.width)]
        buffers += [(RowSet.TOKENS, self.channels)] if self.gated else []
        return run_ops(variant, [op], buffers, {0: x}, native_states.inputs(parts), num_threads)[-1]

    def expected(
        self, x: Tensor, state: Tensor, parts: Sequence[Part]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return the output and the states after it by slot, in fp64."""
        outputs, after, row = [], {}, 0
        for part in parts:
            rows = x[row : row + part.num_rows].double()
            row += part.num_rows
            inputs = rows[:, self.first : self.first + self.channels]
            if self.gated:
                inputs = rows[:, : self.channels] * rows[:, 2 * self.channels :]
            before = state[part.slot].double()
            tokens = torch.cat([torch.zeros_like(before) if part.is_first else before, inputs])
            after[part.slot] = tokens[len(tokens) - self.kernel + 1 :]
            bias = None if self.bias is None else self.bias.double()
            taps = self.weight.double().t().unsqueeze(1)
            y = F.conv1d(tokens.t().unsqueeze(0), taps, bias, groups=self.channels)[0].t()
            y = F.silu(y) if self.activation == Activation.SILU else y
            if self.gated:
                outputs.append(y * rows[:, self.channels : 2 * self.channels])
            else:
                outputs.append(rows.index_copy(1, torch.arange(self.channels) + self.first, y))
        return torch.cat(outputs), after


CASES = {
    "in place": Case(),
    "with columns around": Case(first=7, after=5, activation=Activation.SILU, has_bias=True),
    "gated": Case(gated=True, kernel=3),
    "gated, with bias": Case(gated=True, channels=64, has_bias=True),
    "one channel": Case(channels=1, kernel=2),
    "kernel of one token": Case(kernel=1, channels=65),
    "longer than the sequences": Case(kernel=9, channels=17),
}


@each_variant
@each_case("name", CASES)
def test_outputs_and_states(variant: str, name: str) -> None:
    case = CASES[name]
    x = case.rows(PARTS)
    state = native_states.states(PARTS, case.kernel - 1, case.channels)
    expected, after = case.expected(x, state, PARTS)
    found = case.run(variant, x, state, PARTS)
    # A sum of up to ten products of numbers of about 1, rounded ten times.
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    for slot, values in after.items():
        torch.testing.assert_close(state[slot].double(), values, rtol=1e-6, atol=1e-30)
    native_states.assert_only_these_written(state, PARTS)


@each_variant
def test_neither_chunks_nor_threads_change_a_bit(variant: str) -> None:
    case = CASES["with columns around"]
    whole = (Part(11, 11, 1),)
    x = case.rows(whole)
    state = native_states.states(whole, case.kernel - 1, case.channels)
    expected = case.run(variant, x, state, whole)
    for num_threads in (1, 3):
        divided = torch.full_like(state, torch.nan)
        outputs = []
        for part, rows in native_states.divided(x, (2, 1, 1, 7)):
            outputs.append(case.run(variant, rows, divided, (part,), num_threads))
        assert torch.equal(torch.cat(outputs), expected)
        assert torch.equal(divided[1], state[1])


@each_variant
@each_case("name", ["with columns around", "gated", "longer than the sequences"])
def test_states_after_each_token_are_kept(variant: str, name: str) -> None:
    case, parts = CASES[name], native_states.VERIFIED

    def run(x: Tensor, state: Tensor, parts: Sequence[Part]) -> Tensor:
        return case.run(variant, x, state, parts)

    state = native_states.states(parts, case.kernel - 1, case.channels)
    native_states.assert_states_after_each_token(run, case.rows(parts), state)
