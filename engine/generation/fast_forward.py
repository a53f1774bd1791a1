"""Fast-forward: tokens that a grammar forces are appended without sampling and computed at once."""

from itertools import takewhile

from swiftchat.engine.gpu.steps.graphs import Graphs
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.engine.schedule.sequence import TokenSequence

# With captured steps, a captured chunk takes as long as two or three of them, more with small
# models, and discards the one in flight.
_FEWEST_IN_CHUNK = 7


class FastForward:
    """Appends the tokens that grammars force, where this takes less time than step by step.

    The ids are the same either way: a mask allows only the token that is forced.
    """

    def __init__(self, scheduler: Scheduler, ctx_size_tokens: int, graphs: Graphs) -> None:
        self._scheduler, self._ctx_size_tokens = scheduler, ctx_size_tokens
        self._graphs = graphs

    def append(self, sequence: TokenSequence) -> list[int]:
        """Append the forced tokens to a sequence, as many as fit, and return them.

        None if logprobs are requested, which need every token's logits, or if sampling could find
        the tokens banned. Raises `UsageError` as `Constraint.accept` does.
        """
        constraint, params = sequence.constraint, sequence.params
        has_bans = params.bad_words or params.no_repeat_ngram
        if constraint is None or params.logprobs is not None or has_bans:
            return []
        room = self._ctx_size_tokens - len(sequence.tokens)
        if params.max_tokens is not None:
            room = min(room, params.max_tokens - sequence.num_generated)
        forced = takewhile(lambda token: token not in params.stop_ids, constraint.forced())
        ids = list(forced)[:room]
        if not ids or not self._is_faster(len(ids) + 1):
            return []
        constraint.accept(*ids)
        sequence.tokens += ids
        return ids

    def _is_faster(self, num_tokens: int) -> bool:
        """Return whether to compute so many tokens of a sequence in one step.

        With captured steps only in a captured chunk, and not beside others, which would wait.
        """
        if not self._graphs.replays_steps:
            return True
        is_alone = len(self._scheduler.running) == 1 and not self._scheduler.waiting
        chunks = self._graphs.prefill
        is_captured = chunks is not None and chunks.is_captured(num_tokens)
        return is_alone and is_captured and num_tokens >= _FEWEST_IN_CHUNK
