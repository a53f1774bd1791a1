"""Continuous batching: choose the rows of each forward pass and allocate their blocks."""

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.schedule.blocks import ROOT, BlockAllocator, NoFreeBlock, Parent
from swiftchat.engine.schedule.constraint import Constraint
from swiftchat.weights.architectures.prefix_lm import CAUSAL, BidirectionalPrefix

# A step of limited duration takes about so long at most, and has at least so many tokens; the first
# one has some more. Fewer would read the weights too often.
_MAX_STEP_S = 0.5
_MIN_CHUNK_TOKENS, _FIRST_CHUNK_TOKENS = 32, 64
# The most tokens of a row whose logprobs are requested: it needs memory for all their logits.
_SCORED_TOKENS = 128


@dataclass(eq=False)
class Sequence:
    """The tokens of one generation, and the blocks with their keys and values.

    The blocks of `block_table` hold the keys and values of `tokens[:num_computed]`. The newest
    token is computed in the next step, so `num_computed < len(tokens)` while running. The first
    `num_published` blocks are full and registered in the prefix cache; `parent` is the serial of
    the last of them, or `root`. `num_cached` is the length of the prefix found in the cache.
    `num_scored` prompt tokens have had the logprob of the token after them reported. `constraint`
    follows the generated tokens.
    """

    id: int
    tokens: list[int]
    params: SamplingParams
    bidirectional_prefix: BidirectionalPrefix = CAUSAL
    constraint: Constraint | None = None
    num_prompt: int = field(init=False)
    num_computed: int = 0
    num_cached: int = 0
    block_table: list[int] = field(default_factory=list)
    num_published: int = 0
    num_scored: int = 0
    parent: Parent = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt = len(self.tokens)
        self.parent = self.root

    @property
    def root(self) -> Parent:
        """The parent of the first block: a bidirectional prefix, or ROOT."""
        return tuple(self.tokens[: self.bidirectional_prefix.length]) or ROOT

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_to_score(self) -> int:
        """The number of prompt tokens whose next token needs a logprob."""
        is_scored = self.params.prompt_logprobs is not None
        return self.num_prompt - 1 - self.num_scored if is_scored else 0


@dataclass(frozen=True)
class Row:
    """`num_tokens` tokens of a sequence from `sequence.num_computed` on, in one forward pass."""

    sequence: Sequence
    num_tokens: int

    @property
    def reaches_end(self) -> bool:
        """Whether the next token is sampled from the logits of the row's last token."""
        return self.sequence.num_computed + self.num_tokens == len(self.sequence.tokens)

    @property
    def scored_positions(self) -> range:
        """The positions of the row whose next token is a prompt token that needs a logprob."""
        first = self.sequence.num_computed
        if not self.sequence.num_to_score:
            return range(first, first)
        end = min(first + self.num_tokens, self.sequence.num_prompt - 1)
        return range(max(first, self.sequence.num_scored), end)


@dataclass(frozen=True)
class Step:
    """The rows of a forward pass; the block `copies` (from, to) must be made before it."""

    rows: list[Row]
    copies: list[tuple[int, int]]


class Scheduler:
    """First come, first served, with decode before prefill and at most `chunk_tokens` a step.

    When blocks run out, the sequence admitted last is preempted. Its blocks stay in the prefix
    cache until they are evicted, so resuming it is usually cheap.
    """

    def __init__(self, allocator: BlockAllocator, chunk_tokens: int, max_num_seqs: int) -> None:
        self.allocator = allocator
        self.chunk_tokens = self._max_chunk_tokens = chunk_tokens
        self.max_num_seqs = max_num_seqs
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._limits_duration = False

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, which must fit the cache when alone."""
        self.waiting.append(sequence)

    def schedule(self) -> Step:
        """Choose the rows of the next step and allocate their blocks."""
        copies: list[tuple[int, int]] = []
        rows: list[Row] = []
        budget = self.chunk_tokens
        # Decode rows come first, so that prefill of a long prompt does not stall other answers.
        for sequence in sorted(self.running, key=lambda s: len(s.tokens) - s.num_computed > 1):
            if budget <= 0:
                break
            budget -= self._add_row(rows, sequence, budget)
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            if not self._admit(sequence, copies):
                break
            self.waiting.popleft()
            self.running.append(sequence)
            budget -= self._add_row(rows, sequence, budget, may_preempt=False)
        return Step(rows, copies)

    def limit_duration(self) -> None:
        """From now on adapt the size of a chunk to the durations that `measured` receives."""
        self._limits_duration = True
        self.chunk_tokens = min(_FIRST_CHUNK_TOKENS, self._max_chunk_tokens)

    def measured(self, num_tokens: int, duration_s: float) -> None:
        """Receive how long a step took.

        Chunks are powers of two, so that small differences between durations do not change them.
        """
        if not self._limits_duration or num_tokens < _MIN_CHUNK_TOKENS:
            return
        fitting = int(num_tokens * _MAX_STEP_S / duration_s)
        power = 2 ** (max(fitting, _MIN_CHUNK_TOKENS).bit_length() - 1)
        self.chunk_tokens = min(power, self._max_chunk_tokens)

    def advance(self, row: Row) -> None:
        """Count a row's tokens as computed and publish the blocks it filled."""
        sequence, size = row.sequence, self.allocator.block_size
        sequence.num_scored += len(row.scored_positions)
        sequence.num_computed += row.num_tokens
        while (end := (sequence.num_published + 1) * size) <= sequence.num_computed:
            sequence.parent = self.allocator.publish(
                sequence.block_table[sequence.num_published],
                sequence.parent,
                sequence.tokens[end - size : end],
            )
            sequence.num_published += 1

    def remove(self, sequence: Sequence) -> None:
        """Remove a finished or canceled sequence; its blocks stay in the prefix cache."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release_blocks(sequence)
        else:
            self.waiting.remove(sequence)

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Extend a sequence's block table to `num_tokens`; return False if no block is free."""
        while len(sequence.block_table) * self.allocator.block_size < num_tokens:
            try:
                sequence.block_table.append(self._allocate_next(sequence))
            except NoFreeBlock:
                return False
        return True

    def check_integrity(self) -> None:
        """Raise `AssertionError` if block tables and allocator disagree."""
        self.allocator.check_integrity([s.block_table for s in self.running])
        for sequence in self.running:
            assert sequence.num_computed <= len(sequence.block_table) * self.allocator.block_size

    def _add_row(
        self, rows: list[Row], sequence: Sequence, budget: int, may_preempt: bool = True
    ) -> int:
        """Append the sequence's row; return its number of tokens, 0 if blocks are missing."""
        if sequence not in self.running:  # preempted for an earlier row of this step
            return 0
        # A bidirectional prefix of any length must be computed in a single step.
        minimum = sequence.bidirectional_prefix.length - sequence.num_computed
        budget = min(budget, _SCORED_TOKENS) if sequence.num_to_score else budget
        num_tokens = min(max(budget, minimum), len(sequence.tokens) - sequence.num_computed)
        while not self.reserve(sequence, sequence.num_computed + num_tokens):
            victim = self.running[-1]
            if not may_preempt or victim is sequence or any(r.sequence is victim for r in rows):
                return 0
            self._preempt(victim)
        rows.append(Row(sequence, num_tokens))
        return num_tokens

    def _admit(self, sequence: Sequence, copies: list[tuple[int, int]]) -> bool:
        """Assign the cached prefix of a waiting sequence; return False if blocks are missing."""
        # The last token is always computed, because the next one is sampled from its logits, and
        # so is every token whose logits give a logprob.
        num_reusable = sequence.num_scored if sequence.num_to_score else len(sequence.tokens) - 1
        prefix = self.allocator.find_prefix(sequence.tokens[:num_reusable], sequence.root)
        size = self.allocator.block_size
        needed = -(-len(sequence.tokens) // size) - len(prefix.blocks)
        reusable = sum(self.allocator.is_cached(block) for block in prefix.blocks)
        available = self.allocator.num_free + self.allocator.num_cached - reusable
        if needed > available:
            return False
        self.allocator.acquire(prefix.blocks)
        sequence.block_table = list(prefix.blocks)
        sequence.parent, sequence.num_published = prefix.parent, len(prefix.blocks)
        sequence.num_computed = len(prefix.blocks) * size
        if prefix.tail is not None:
            block = self._allocate_next(sequence)
            copies.append((prefix.tail, block))
            sequence.block_table.append(block)
            sequence.num_computed += prefix.tail_tokens
        if not sequence.num_generated:
            sequence.num_cached = sequence.num_computed
        return True

    def _allocate_next(self, sequence: Sequence) -> int:
        table = sequence.block_table
        return self.allocator.allocate(after=table[-1] if table else None)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release_blocks(sequence)
        self.waiting.appendleft(sequence)

    def _release_blocks(self, sequence: Sequence) -> None:
        start = sequence.num_published * self.allocator.block_size
        rest: Seq[int] = sequence.tokens[start : sequence.num_computed]
        if rest:
            self.allocator.publish(
                sequence.block_table[sequence.num_published], sequence.parent, rest
            )
        self.allocator.release(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed = sequence.num_published = 0
        sequence.parent = sequence.root
