"""A draft model: a small model with the same vocabulary that proposes its most probable tokens."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.schedule.blocks import BlockAllocator
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.engine.schedule.sequence import Row, Step, TokenSequence
from swiftchat.engine.schedule.states import StateSlots
from swiftchat.engine.speculation.step_costs import smoothed

_PARAMS = SamplingParams(temperature=0)

Compute = Callable[[Step], Tensor | None]


@dataclass
class _Followed:
    """The draft model's copy of a sequence, and the scheduler that has it alone.

    Between two calls its tokens are the first ones of the sequence, and all of them are computed.
    """

    sequence: TokenSequence
    scheduler: Scheduler
    num_slides: int


class DraftModel:
    """Proposes tokens for sequences with a decoder and a KV cache of its own.

    `compute` returns the logits of a step's rows, fp32 [rows, vocab_size of the draft model], None
    if there are none. All sequences share the allocator with its prefix cache, and `states`, which
    are those of a draft model whose layers have some. `vocab_size` is that of the target: ids
    beyond it are never proposed. `step_s` is the estimated duration of a draft step in seconds,
    None if only measurements tell it.
    """

    name = "draft"

    def __init__(
        self,
        compute: Compute,
        allocator: BlockAllocator,
        states: StateSlots,
        *,
        chunk_tokens: int,
        ctx_size_tokens: int,
        vocab_size: int,
        step_s: float | None,
    ) -> None:
        self._compute, self._allocator, self._states = compute, allocator, states
        self._chunk_tokens = chunk_tokens
        self._ctx_size_tokens, self._vocab_size = ctx_size_tokens, vocab_size
        self.step_s, self._measures = step_s, step_s is None
        self._followed: dict[int, _Followed] = {}

    def propose(self, sequence: TokenSequence, num_tokens: int) -> list[int]:
        """Return up to `num_tokens` tokens; none while the prompt is computed, chunk by chunk."""
        if len(sequence.tokens) + num_tokens > self._ctx_size_tokens:
            return []
        followed = self._follow(sequence)
        if followed is None:
            return []
        if followed.sequence.num_computed == len(followed.sequence.tokens):
            return []  # the sequence got no token since the last call
        try:
            return self._propose(followed, num_tokens)
        except Exception:
            followed.scheduler.step_failed()
            self.forget(sequence)
            raise

    def _propose(self, followed: _Followed, num_tokens: int) -> list[int]:
        copy, scheduler = followed.sequence, followed.scheduler
        step = scheduler.schedule()
        logits = self._compute(step)
        if not step.rows:  # no free blocks
            return []
        (row,) = step.rows
        reaches_end = row.reaches_end
        scheduler.advance(row)
        if not reaches_end or logits is None:
            return []
        num_known = len(copy.tokens)
        proposed = [self._most_probable(logits)]
        # Their blocks are not published: the tokens may be rejected.
        with self._states.drafting(copy) as has_state:
            while has_state and len(proposed) < num_tokens:
                copy.tokens.append(proposed[-1])
                if not scheduler.reserve(copy, len(copy.tokens)):
                    break
                proposed.append(self._next(copy))
        del copy.tokens[num_known:]
        copy.num_computed = num_known
        return proposed

    def forget(self, sequence: TokenSequence) -> None:
        """Free the blocks of a sequence that has ended; they stay in the prefix cache."""
        followed = self._followed.pop(sequence.id, None)
        if followed is not None:
            followed.scheduler.remove(followed.sequence)

    def _follow(self, sequence: TokenSequence) -> _Followed | None:
        """Return the copy of a sequence with the tokens that it got since the last call.

        None if there is no slot for its states.
        """
        followed = self._followed.get(sequence.id)
        if followed is not None and followed.num_slides != sequence.num_slides:
            self.forget(sequence)
            followed = None
        if followed is None:
            if self._states.num_slots and len(self._followed) >= self._states.max_num_seqs:
                return None
            copy = TokenSequence(sequence.id, list(sequence.tokens), _PARAMS)
            scheduler = Scheduler(self._allocator, self._chunk_tokens, 1)
            if self._states.num_slots:
                scheduler.use_states(self._states)
            scheduler.add(copy)
            followed = _Followed(copy, scheduler, sequence.num_slides)
            self._followed[sequence.id] = followed
        copy = followed.sequence
        copy.tokens += sequence.tokens[len(copy.tokens) :]
        return followed

    def _next(self, copy: TokenSequence) -> int:
        """Compute the newest token; return the one that the draft model expects after it."""
        started = time.perf_counter()
        logits = self._compute(Step([Row(copy, 1)], []))
        assert logits is not None
        token = self._most_probable(logits)
        copy.num_computed += 1
        self._states.drafted(copy)
        if self._measures:
            self.step_s = smoothed(self.step_s, time.perf_counter() - started)
        return token

    def _most_probable(self, logits: Tensor) -> int:
        return int(logits[-1, : self._vocab_size].argmax())
