"""What proposes tokens with weights of its own: a draft model or prediction heads."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.speculation.step_costs import smoothed


class Proposer(Protocol):
    """Proposes tokens for sequences.

    `name` is that of `Speculated`, `step_s` the duration of proposing one token in seconds, None
    until it is known.
    """

    @property
    def name(self) -> str: ...
    @property
    def step_s(self) -> float | None: ...

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
