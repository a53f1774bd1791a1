"""Speculation whose proposals a test knows: the right tokens, with wrong ones among them."""

from collections.abc import Collection, Sequence

from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.speculation.speculation import Speculation
from swiftchat.engine.speculation.step_costs import StepCosts
from tests.support.tiny_models import VOCAB_SIZE

_WRONG_EVERY = 5


class Oracle(Speculation):
    """Proposes the ids that plain decoding gave, every fifth of them changed.

    `answers` are these ids by generation id. The number of proposed ids goes from 0 to `most`. On a
    GPU no step is launched ahead if the Oracle is `eager`, so all its proposals are verified; else
    none is launched where look-up would propose tokens.
    """

    def __init__(
        self,
        engine: Engine,
        answers: dict[int, list[int]],
        most: int = 8,
        *,
        eager: bool = False,
    ) -> None:
        super().__init__(StepCosts(0.0), 64, engine.ctx_size_tokens, measures=False)
        self._answers, self._most, self._is_eager = answers, most, eager

    def would_propose(self, sequences: Collection[TokenSequence]) -> bool:
        return self._is_eager or super().would_propose(sequences)

    def _proposal(self, sequence: TokenSequence, num_rows: int) -> list[int]:
        super()._proposal(sequence, num_rows)
        start, length = sequence.num_generated, len(sequence.tokens) % (self._most + 1)
        ids: Sequence[int] = self._answers.get(sequence.id, [])[start : start + length]
        room = self._ctx_size_tokens - len(sequence.tokens) - 1
        changed = [
            (token + 1) % VOCAB_SIZE if (start + i) % _WRONG_EVERY == 4 else token
            for i, token in enumerate(ids)
        ]
        return changed[: max(0, room)]


def use_oracle(
    engine: Engine, answers: dict[int, list[int]], most: int = 8, *, eager: bool = False
) -> Engine:
    """Let the engine verify the oracle's proposals."""
    engine.use_speculation(Oracle(engine, answers, most, eager=eager))
    return engine
