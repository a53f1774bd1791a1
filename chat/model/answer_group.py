"""Several answers to a prompt: with consecutive seeds, or the best beams of one search."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace

from swiftchat.chat.model.answer import Answer
from swiftchat.engine.api.params import SamplingParams
from swiftchat.errors import UsageError

_SEED_BITS = 32


class AnswerGroup:
    """`count` answers to each of some prompts, which the engine computes once, at the same time.

    Each of `starts` starts an answer to a prompt with given parameters. `started` are the answers
    to iterate: with consecutive seeds, or only the best one of a beam search. When these have
    ended, iterating over the group also yields its other beams, whose text is known when they are
    iterated. A search may have found fewer than `count`.
    """

    def __init__(
        self, *starts: Callable[[SamplingParams], Answer], params: SamplingParams, count: int = 1
    ) -> None:
        """Raises `UsageError` for several greedy answers, and for more than the beams."""
        self.count = count
        self.started: list[Answer] = []
        try:
            for start in starts:
                for one in params_of_samples(params, count):
                    self.started.append(start(one))
        except BaseException:
            self.cancel()
            raise

    def __iter__(self) -> Iterator[Answer]:
        yield from self.started
        for best in self.started:
            yield from map(best.of_beam, range(1, len(best.beams)))

    def cancel(self) -> None:
        for answer in self.started:
            answer.cancel()


def params_of_samples(params: SamplingParams, count: int) -> list[SamplingParams]:
    """Return the parameters of each answer that must be started for `count` answers.

    A single one if they have `beams`. Raises `UsageError` for several greedy answers, and for more
    than the beams.
    """
    if params.beams is not None:
        return [replace(params, returned_beams=count)]
    if count == 1:
        return [params]
    if params.temperature == 0:
        raise UsageError(
            f"{count} samples with temperature 0 would be the same answer {count} times",
            "choose a temperature above 0, or as many beams",
        )
    first = secrets.randbits(_SEED_BITS) if params.seed is None else params.seed
    return [replace(params, seed=(first + i) % 2**64) for i in range(count)]
