"""Continuous batching: choose the rows of each forward pass and allocate their blocks."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from swiftchat.engine.schedule.blocks import BlockAllocator, NoFreeBlock, Prefix
from swiftchat.engine.schedule.chunk import ChunkLimit
from swiftchat.engine.schedule.prefix import find_prefix, will_be_computed
from swiftchat.engine.schedule.sequence import Row, Step, Stored, TokenSequence
from swiftchat.engine.schedule.states import StateSlots

# The most tokens of a row whose logprobs are requested: it needs memory for all their logits.
_SCORED_TOKENS = 128


class Restorer(Protocol):
    """The tiers below the device: host memory and disk."""

    def restore(self, sequence: TokenSequence, num_tokens: int) -> bool:
        """Bring some blocks of the sequence's first tokens to the device, as cached blocks.

        Return whether it should be called again before the sequence is admitted.
        """


class Scheduler:
    """First come, first served, with decode before prefill and at most `chunk_tokens` a step.

    Embeddings get what is left of a step: many come at once, and are not read as they come.
    With a `limit`, prompts get fewer tokens of a step, so that it does not take too long.
    When blocks run out, the sequence admitted last is preempted. Its blocks stay in the prefix
    cache until they are evicted, so resuming it is usually cheap.
    """

    def __init__(self, allocator: BlockAllocator, chunk_tokens: int, max_num_seqs: int) -> None:
        self.allocator = allocator
        self.chunk_tokens = chunk_tokens
        self.limit: ChunkLimit | None = None
        self.max_num_seqs = max_num_seqs
        self.waiting: deque[TokenSequence] = deque()  # embeddings behind the others
        self.running: dict[TokenSequence, None] = {}  # in the order of their admission
        self.restorer: Restorer | None = None
        self.states = StateSlots(0, allocator.block_size)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def use_states(self, states: StateSlots) -> None:
        """Manage the states of a model too; one slot is for snapshots, before any sequence."""
        self.states = states
        self.max_num_seqs = min(self.max_num_seqs, states.max_num_seqs)

    def add(self, sequence: TokenSequence) -> None:
        """Queue a sequence, which must fit the cache when alone."""
        is_last = sequence.is_embedding
        self.waiting.insert(len(self.waiting) if is_last else self._first_embedding, sequence)

    def schedule(self) -> Step:
        """Choose the rows of the next step and allocate their blocks."""
        step = Step([], [])
        self.states.end_verification(self.running)
        budget = self.budget
        for is_embedding in (False, True):
            running = [one for one in self.running if one.is_embedding == is_embedding]
            # Decode rows come first, so that prefill of a long prompt does not stall other answers.
            for sequence in sorted(running, key=lambda s: not s.is_decoding):
                if budget <= 0:
                    break
                budget -= self._add_row(step, sequence, budget)
            while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
                sequence = self.waiting[0]
                prefix = self._find_prefix(sequence)
                if sequence.is_embedding != is_embedding or not self._has_room(sequence, prefix):
                    break
                size = self.allocator.block_size
                if will_be_computed(sequence, prefix, self.running, size, self.states):
                    break
                if self.restorer is not None:
                    if step.copies:  # restoring now could overwrite a block before it is copied
                        break
                    if self.restorer.restore(sequence, sequence.num_reusable):
                        return replace(step, restoring=sequence)
                    prefix = self._find_prefix(sequence)
                self._admit(sequence, prefix, step.copies)
                self.waiting.popleft()
                self.running[sequence] = None
                budget -= self._add_row(step, sequence, budget, may_preempt=False)
        return replace(step, state_copies=self.states.take_copies())

    @property
    def _first_embedding(self) -> int:
        """The position of the first embedding that waits, or the end."""
        waiting = enumerate(self.waiting)
        return next((i for i, one in waiting if one.is_embedding), len(self.waiting))

    @property
    def budget(self) -> int:
        """The most tokens of the next step.

        A limit holds for the tokens of prompts; the decode rows come on top. With many of them a
        step takes long anyway: prompts get enough tokens to follow answers as they end.
        """
        num_decoding = sum(sequence.is_decoding for sequence in self.running)
        if self.limit is None or (self.limit.only_while_decoding and not num_decoding):
            return self.chunk_tokens
        prefill_tokens = max(self.limit.tokens, 2 * num_decoding)
        return min(num_decoding + prefill_tokens, self.chunk_tokens)

    def measured(self, step: Step, duration_s: float) -> None:
        """Receive how long a step took; call it before `advance`."""
        prefill = [row.num_tokens for row in step.rows if not row.sequence.is_decoding]
        # Without a token to sample, a GPU may still compute.
        is_limited = self.limit is not None and (
            not self.limit.only_while_decoding or len(prefill) < len(step.rows)
        )
        if self.limit is not None and is_limited:
            self.limit.measured(sum(prefill), duration_s)

    def advance(self, row: Row) -> None:
        """Count a row's tokens as computed and publish the blocks it filled."""
        sequence, size = row.sequence, self.allocator.block_size
        sequence.num_scored += len(row.scored_positions)
        sequence.num_pooled += len(row.pooled_positions)
        sequence.num_computed += row.num_tokens
        self.states.computed(sequence, row.num_tokens)
        while (end := (sequence.num_published + 1) * size) <= sequence.num_computed:
            sequence.parent = self.allocator.publish(
                sequence.block_table[sequence.num_published],
                sequence.parent,
                sequence.tokens[end - size : end],
            )
            sequence.num_published += 1

    def remove(self, sequence: TokenSequence) -> None:
        """Remove a finished or canceled sequence; its blocks stay in the prefix cache."""
        if sequence in self.running:
            del self.running[sequence]
            self._release_blocks(sequence)
        else:
            self.waiting.remove(sequence)

    def step_failed(self) -> None:
        """Count nothing as computed that a failed step may have left unwritten; remove all then.

        Some copies and given values of the step may be missing, and some layers may have advanced:
        `remove` publishes no further block of the running sequences, and no state is kept.
        """
        for sequence in self.running:
            sequence.num_computed = 0
        self.states.clear()

    def restart(self, sequence: TokenSequence) -> None:
        """Queue a running sequence anew, before others of its kind, to compute its tokens again."""
        sequence.proposed = ()
        del self.running[sequence]
        self._release_blocks(sequence)
        self.waiting.insert(self._first_embedding if sequence.is_embedding else 0, sequence)

    def put_first(self, sequences: Sequence[TokenSequence]) -> None:
        """Put waiting sequences before all others, in this order."""
        for sequence in reversed(sequences):
            self.waiting.remove(sequence)
            self.waiting.appendleft(sequence)

    def preempt(self, sequence: TokenSequence) -> None:
        """Queue a running sequence anew to make room for others."""
        self.restart(sequence)

    def reserve(self, sequence: TokenSequence, num_tokens: int) -> bool:
        """Extend a sequence's block table to `num_tokens`; return False if no block is free."""
        while len(sequence.block_table) * self.allocator.block_size < num_tokens:
            try:
                sequence.block_table.append(self._allocate_next(sequence))
            except NoFreeBlock:
                return False
        return True

    def reserve_next(self, sequence: TokenSequence) -> bool:
        """Reserve the blocks for all tokens of a running sequence; return False as `reserve`."""
        return self.reserve(sequence, len(sequence.tokens))

    def has_room(self, sequence: TokenSequence) -> bool:
        """Return whether the blocks of the device suffice to admit a waiting sequence."""
        return self._has_room(sequence, self._find_prefix(sequence))

    def stats(self) -> dict[str, int]:
        """Return the numbers of blocks by state, and of sequences."""
        return {
            "num_blocks": self.allocator.num_blocks,
            "block_size": self.allocator.block_size,
            "free_blocks": self.allocator.num_free,
            "used_blocks": self.allocator.num_used,
            "cached_blocks": self.allocator.num_cached,
            "running": len(self.running),
            "waiting": len(self.waiting),
        }

    def check_integrity(self) -> None:
        """Raise `AssertionError` if block tables and allocator disagree."""
        self.allocator.check_integrity([s.block_table for s in self.running])
        self.states.check_integrity(self.running)
        for sequence in self.running:
            assert sequence.num_computed <= len(sequence.block_table) * self.allocator.block_size

    def _add_row(
        self, step: Step, sequence: TokenSequence, budget: int, may_preempt: bool = True
    ) -> int:
        """Append the sequence's row; return how many tokens it has, 0 if blocks are missing."""
        if sequence not in self.running:  # preempted for an earlier row of this step
            return 0
        if sequence.num_computed == len(sequence.tokens):  # it waits for the other beams
            return 0
        # A bidirectional prefix of any length must be computed in a single step.
        minimum = sequence.bidirectional_prefix.length - sequence.num_computed
        budget = min(budget, _SCORED_TOKENS) if sequence.num_to_score else budget
        start = sequence.num_computed + sequence.num_to_store
        num_tokens = min(max(budget, minimum), len(sequence.tokens) - start)
        num_tokens = self.states.row_end(sequence, start, start + num_tokens) - start
        while not self.reserve(sequence, start + num_tokens):
            victim = next((s for s in reversed(self.running) if not s.is_held), sequence)
            has_row = any(row.sequence is victim for row in step.rows)
            if not may_preempt or victim is sequence or has_row:
                return 0
            self.preempt(victim)
        if sequence.num_to_store:
            step.stored.append(Stored(sequence, len(step.copies)))
            # `advance` publishes their blocks after the step, when they are written.
            sequence.num_computed += sequence.num_to_store
        proposed = self._room_for_proposed(sequence, num_tokens, budget)
        step.rows.append(Row(sequence, num_tokens, proposed))
        return num_tokens + len(proposed)

    def _room_for_proposed(
        self, sequence: TokenSequence, num_tokens: int, budget: int
    ) -> tuple[int, ...]:
        """Return the proposed tokens that can be computed after the next `num_tokens`.

        They preempt no other sequence.
        """
        end = sequence.num_computed + num_tokens
        has_states = self.states.num_slots > 0
        if end < len(sequence.tokens) or (has_states and num_tokens > 1):
            return ()
        proposed = sequence.proposed[: max(0, budget - num_tokens)]
        if not self.reserve(sequence, end + len(proposed)):
            return ()
        return proposed[: self.states.verify(sequence, len(proposed))] if has_states else proposed

    def _find_prefix(self, sequence: TokenSequence) -> Prefix:
        return find_prefix(sequence, self.running, self.allocator, self.states)

    def _has_room(self, sequence: TokenSequence, prefix: Prefix) -> bool:
        """Return whether the blocks of the device suffice for a waiting sequence."""
        num_blocks = -(-len(sequence.tokens) // self.allocator.block_size)
        # At most the whole cache, in which a sequence that is alone has room.
        all_blocks = min(num_blocks + sequence.num_further_blocks, self.allocator.num_blocks)
        needed = all_blocks - len(prefix.blocks)
        reusable = sum(self.allocator.is_cached(block) for block in prefix.blocks)
        return needed <= self.allocator.num_free + self.allocator.num_cached - reusable

    def _admit(
        self, sequence: TokenSequence, prefix: Prefix, copies: list[tuple[int, int]]
    ) -> None:
        """Assign the cached prefix of a waiting sequence, for which there is room."""
        self.allocator.acquire(prefix.blocks)
        sequence.block_table = list(prefix.blocks)
        sequence.parent, sequence.num_published = prefix.parent, len(prefix.blocks)
        sequence.num_computed = len(prefix.blocks) * self.allocator.block_size
        if prefix.tail is not None:
            block = self._allocate_next(sequence)
            copies.append((prefix.tail, block))
            sequence.block_table.append(block)
            sequence.num_computed += prefix.tail_tokens
        self.states.admit(sequence, prefix.snapshot)
        if not sequence.num_generated:
            sequence.num_cached = sequence.num_computed

    def _allocate_next(self, sequence: TokenSequence) -> int:
        table = sequence.block_table
        return self.allocator.allocate(after=table[-1] if table else None)

    def _release_blocks(self, sequence: TokenSequence) -> None:
        self.states.release(sequence)
        start = sequence.num_published * self.allocator.block_size
        rest: Sequence[int] = sequence.tokens[start : sequence.num_computed]
        if rest:
            self.allocator.publish(
                sequence.block_table[sequence.num_published], sequence.parent, rest
            )
        self.allocator.release(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed = sequence.num_published = 0
        sequence.parent = sequence.root
