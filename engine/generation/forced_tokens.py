"""Tokens that are not sampled: the end of reasoning whose budget is spent, and what grammars force.

They are appended together and computed in one step with the token before them ("fast-forward").
"""

from itertools import takewhile

from swiftchat.engine.gpu.steps.graphs import Graphs
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.engine.schedule.sequence import TokenSequence

# With captured steps, a captured chunk takes as long as two or three of them, more with small
# models, and discards the one in flight.
_FEWEST_IN_CHUNK = 7


class ForcedTokens:
    """Appends the tokens that must follow a sampled one.

    What a grammar forces is appended where this takes less time than step by step: the ids are the
    same either way, because a mask allows only the token that is forced.
    """

    def __init__(self, scheduler: Scheduler, ctx_size_tokens: int, graphs: Graphs) -> None:
        self._scheduler, self._ctx_size_tokens = scheduler, ctx_size_tokens
        self._graphs = graphs

    def append(self, sequence: TokenSequence, token: int) -> list[int]:
        """Append what must follow the newest `token` of a sequence, as much as fits; return it.

        Raises `UsageError` as `Constraint.accept` does.
        """
        if sequence.constraint is not None:
            sequence.constraint.accept(token)
        if sequence.reasoning is not None:
            sequence.reasoning.push(token)
        return [*self._end_reasoning(sequence), *self._fast_forward(sequence)]

    def _end_reasoning(self, sequence: TokenSequence) -> list[int]:
        """Append the end of reasoning whose budget is spent.

        With logprobs, which need every token's logits, `sequence.forced` gets it instead. In a
        context that will slide before, the reasoning goes on until then.
        """
        reasoning, params = sequence.reasoning, sequence.params
        if reasoning is None or not reasoning.is_spent:
            return []
        room = self._room(sequence)
        if len(reasoning.markers.ending) >= room and params.sliding_keep is not None:
            return []
        if params.logprobs is not None:
            sequence.forced = reasoning.end()
            return []
        return self._appended(sequence, reasoning.end()[:room])

    def _fast_forward(self, sequence: TokenSequence) -> list[int]:
        """Append what the grammar forces.

        Nothing if logprobs are requested, if sampling could find the tokens banned, or in reasoning
        with a budget, which they may end.
        """
        constraint, params = sequence.constraint, sequence.params
        has_bans = params.bad_words or params.no_repeat_ngram
        is_thinking = sequence.reasoning is not None and sequence.reasoning.is_thinking
        if constraint is None or params.logprobs is not None or has_bans or is_thinking:
            return []
        room = self._room(sequence)
        if sequence.num_left is not None:
            room = min(room, sequence.num_left)
        forced = takewhile(lambda token: token not in params.stop_ids, constraint.forced())
        ids = list(forced)[:room]
        if not ids or not self._is_faster(len(ids) + 1):
            return []
        return self._appended(sequence, ids)

    def _room(self, sequence: TokenSequence) -> int:
        return self._ctx_size_tokens - len(sequence.tokens)

    def _appended(self, sequence: TokenSequence, ids: list[int]) -> list[int]:
        if sequence.constraint is not None:
            sequence.constraint.accept(*ids)
        if sequence.reasoning is not None:
            sequence.reasoning.push(*ids)
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
