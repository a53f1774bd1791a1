"""Recurrences of mixers: a native kernel against a computation token by token in fp64."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.engine.cpu.mixers import Parameters
from swiftchat.engine.cpu.native import Activation, OpHeader, RowSet
from swiftchat.engine.cpu.references import References
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.weights.architectures.parts.mixers import StateMixer
from tests.support.native import states as native_states
from tests.support.native.ops import run_ops
from tests.support.native.states import PARTS, Part


class ScanCase(ABC):
    """A mixer without its projections and convolution, and its reference."""

    @property
    @abstractmethod
    def kind(self) -> StateMixer:
        """The mixer."""

    @property
    @abstractmethod
    def weights(self) -> MixerWeights:
        """Its weights."""

    @property
    @abstractmethod
    def sizes(self) -> list[int]:
        """The widths of what a row consists of; last are the steps, one for each head."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The width of the output."""

    @property
    @abstractmethod
    def state_shape(self) -> tuple[int, ...]:
        """The shape of a sequence's state."""

    @abstractmethod
    def token(self, row: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the state after a token and its output, in fp64."""

    def rows(self, parts: Sequence[Part]) -> Tensor:
        x = random(native_states.num_rows(parts), sum(self.sizes))
        x[::3, -self.sizes[-1] :] = 60.0  # these steps forget everything
        return x

    def state(self, parts: Sequence[Part]) -> Tensor:
        return native_states.states(parts, *self.state_shape)

    def run(
        self, variant: str, x: Tensor, state: Tensor, parts: Sequence[Part], num_threads: int = 2
    ) -> Tensor:
        """Return the output, and advance the state."""
        parameters = Parameters(self.weights, (torch.empty(0), state), References())
        op = parameters.mixer(self.kind, Activation.SILU).scan
        assert op is not None
        op.header, op.x, op.out = OpHeader(row_set=RowSet.TOKENS), 0, 1
        buffers = [(RowSet.TOKENS, x.shape[1]), (RowSet.TOKENS, self.width)]
        found = run_ops(variant, [op], buffers, {0: x}, native_states.inputs(parts), num_threads)
        assert torch.equal(found[0], x)
        return found[1]

    def expected(self, x: Tensor, state: Tensor, parts: Sequence[Part]) -> tuple[Tensor, Tensor]:
        """Return the output and the states after it, in fp64."""
        outputs, after, row = [], state.double(), 0
        for part in parts:
            own = torch.zeros_like(after[0]) if part.is_first else after[part.slot]
            for token in x[row : row + part.num_rows].double():
                own, out = self.token(token, own)
                outputs.append(out)
            row += part.num_rows
            after[part.slot] = own
        return torch.stack(outputs), after


def assert_close_to_reference(case: ScanCase, variant: str, state_atol: float) -> None:
    x, state = case.rows(PARTS), case.state(PARTS)
    expected, after = case.expected(x, state, PARTS)
    found = case.run(variant, x, state, PARTS)
    # Sums of up to 128 products; the norm may enlarge small outputs.
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state.double(), after, rtol=1e-5, atol=state_atol, equal_nan=True)
    native_states.assert_only_these_written(state, PARTS)


def assert_same_in_chunks(case: ScanCase, variant: str) -> None:
    """Neither chunks of a prompt nor the number of threads change a bit."""
    whole = (Part(11, 11, 1),)
    x, state = case.rows(whole), case.state(whole)
    expected = case.run(variant, x, state, whole)
    for num_threads in (1, 3):
        divided, outputs = torch.full_like(state, torch.nan), []
        for part, rows in native_states.divided(x, (2, 1, 1, 7)):
            outputs.append(case.run(variant, rows, divided, (part,), num_threads))
        assert torch.equal(torch.cat(outputs), expected)
        assert torch.equal(divided[1], state[1])


def assert_states_after_each_token(case: ScanCase, variant: str) -> None:
    parts = native_states.VERIFIED

    def run(x: Tensor, state: Tensor, parts: Sequence[Part]) -> Tensor:
        return case.run(variant, x, state, parts)

    native_states.assert_states_after_each_token(run, case.rows(parts), case.state(parts))


def random(*shape: int, seed: int = 0) -> Tensor:
    """Return normally distributed values."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
