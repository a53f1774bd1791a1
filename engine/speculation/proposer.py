"""What proposes tokens with weights of its own: a draft model or prediction heads."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from swiftchat.engine.model.hidden_states import LAST_NORM, HiddenStates
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import Row, TokenSequence
from swiftchat.engine.speculation.step_costs import smoothed


@dataclass(frozen=True)
class ObservedRow:
    """The hidden states that a step computed for a sequence, by layer as in `HiddenStates`.

    Those of a layer are fp32 [n, hidden_size] of consecutive tokens, the first at `position`.
    Those of `LAST_NORM` are of the row's last token and of its proposed ones, the first at
    `last_position`; empty if the row ends within a prompt.
    """

    sequence: TokenSequence
    position: int
    last_position: int
    hidden: Mapping[int, Tensor]


class Proposer(Protocol):
    """Proposes tokens for sequences.

    `name` is that of `Speculated`, `step_s` the duration of proposing one token in seconds, None
    until it is known. A proposer that reads hidden states names their layers in `hidden_layers`.
    """

    @property
    def name(self) -> str: ...
    @property
    def step_s(self) -> float | None: ...
    @property
    def hidden_layers(self) -> Collection[int]: ...

    def observe(self, row: ObservedRow) -> None:
        """Receive what a step computed, before its token is sampled."""

    def propose(self, sequence: TokenSequence, num_tokens: int) -> list[int]:
        """Return up to `num_tokens` tokens that may follow."""

    def forget(self, sequence: TokenSequence) -> None:
        """Free what is kept for a sequence that has ended."""


class Stopwatch:
    """Measures `step_s` of a proposer, in seconds for one token.

    With a `fixed_s` it does not: decisions on a GPU follow no clock, so that one seed gives one
    text.
    """

    def __init__(self, fixed_s: float | None = None) -> None:
        self.step_s, self._is_fixed = fixed_s, fixed_s is not None

    @contextmanager
    def measured(self, num_tokens: int) -> Iterator[None]:
        started = time.perf_counter()
        yield
        if self._is_fixed:
            return
        self.step_s = smoothed(self.step_s, (time.perf_counter() - started) / num_tokens)


def observed_decode_rows(rows: Sequence[Row], hidden: HiddenStates) -> Iterator[ObservedRow]:
    """Divide the hidden states of a replayed decode or verification step among its sequences."""
    start = 0
    for row in rows:
        end, position = start + 1 + len(row.proposed), row.sequence.num_computed
        found = {layer: states[start:end] for layer, states in hidden.found.items()}
        yield ObservedRow(row.sequence, position, position, found)
        start = end


def observed_rows(rows: Sequence[Row], batch: Batch, hidden: HiddenStates) -> Iterator[ObservedRow]:
    """Divide the hidden states of a computed batch of these rows among their sequences."""
    first_logits = {
        id(row): index for row, index in zip(batch.sampled_rows, batch.sampled_logits, strict=True)
    }
    for row, span in zip(rows, batch.spans, strict=True):
        tokens = slice(span.start, span.start + span.num_tokens)
        start = first_logits.get(id(row), 0)
        end = start + 1 + len(row.proposed) if id(row) in first_logits else start
        parts = {
            layer: slice(start, end) if layer == LAST_NORM else tokens for layer in hidden.found
        }
        yield ObservedRow(
            row.sequence,
            row.sequence.num_computed,
            row.sequence.num_computed + row.num_tokens - 1,
            {layer: states[parts[layer]] for layer, states in hidden.found.items()},
        )
