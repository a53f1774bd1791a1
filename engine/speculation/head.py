"""Proposes tokens with a prediction head that is one more layer of the model."""

from collections.abc import Callable

from swiftchat.engine.model.prediction_head import Chain
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.speculation.proposer import Stopwatch


class HeadProposer:
    """Proposes the tokens of a head's chain.

    Every step stores its tokens for the head, in the blocks of the model's KV cache. So the head
    knows whatever the model has computed, and nothing is kept of a sequence here. `reserve` extends
    a sequence's blocks, as `Scheduler.reserve`.
    """

    def __init__(
        self,
        name: str,
        chain: Chain,
        reserve: Callable[[TokenSequence, int], bool],
        step_s: float | None = None,
    ) -> None:
        """Use `step_s` as the duration of proposing a token in seconds, or measure it."""
        self.name = name
        self._chain, self._reserve = chain, reserve
        self._stopwatch = Stopwatch(step_s)

    @property
    def step_s(self) -> float | None:
        return self._stopwatch.step_s

    def propose(self, sequence: TokenSequence, num_tokens: int) -> list[int]:
        """Return `num_tokens` tokens; none for the first token of all, or without free blocks."""
        position = sequence.num_computed
        if not position or num_tokens < 1 or not self._reserve(sequence, position + num_tokens):
            return []
        token, table = sequence.tokens[position], sequence.block_table
        with self._stopwatch.measured(num_tokens):
            return self._chain(token, position, table, num_tokens)

    def forget(self, sequence: TokenSequence) -> None:
        """Do nothing: the blocks of the sequence are all that there is."""
