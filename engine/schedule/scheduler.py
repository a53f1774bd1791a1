"""Decides which tokens of which sequences the next forward pass computes."""

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.schedule.blocks import ROOT, BlockAllocator, NoFreeBlock, Parent
from swiftchat.weights.architectures.prefix_lm import CAUSAL, BidirectionalPrefix


@dataclass(eq=False)
class Sequence:
    """One generation: its tokens so far, and the blocks that hold what was computed of them.

    Keys and values of `tokens[:num_computed]` are in the blocks of `block_table`. The newest
    token is never computed before the next step, so `num_computed < len(tokens)` while running.
    `num_published` counts the leading full blocks whose content the allocator knows, and
    `parent` is the serial of the last of those, or the `root` where there are none.
    """

    id: int
    tokens: list[int]
    params: SamplingParams
    bidirectional_prefix: BidirectionalPrefix = CAUSAL
    num_prompt: int = field(init=False)
    num_computed: int = 0
    num_cached: int = 0
    block_table: list[int] = field(default_factory=list)
    num_published: int = 0
    parent: Parent = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt = len(self.tokens)
        self.parent = self.root

    @property
    def root(self) -> Parent:
        """What the content of the first block depends on, beside its own tokens."""
        return tuple(self.tokens[: self.bidirectional_prefix.length]) or ROOT

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt


@dataclass(frozen=True)
class Row:
    """`num_tokens` of one sequence, beginning at `sequence.num_computed`, in one forward pass."""

    sequence: Sequence
    num_tokens: int

    @property
    def reaches_end(self) -> bool:
        """Whether the logits of the row's last token choose the sequence's next token."""
        return self.sequence.num_computed + self.num_tokens == len(self.sequence.tokens)


@dataclass(frozen=True)
class Step:
    """What the next forward pass computes; `copies` (from, to) must be carried out before it."""

    rows: list[Row]
    copies: list[tuple[int, int]]


class Scheduler:
    """First come, first served, with decoding before prefill and at most `chunk_tokens` a step.

    When blocks run out, the sequence admitted last gives its own back and waits; what it had
    computed stays cached as long as the room is not needed, so going on is usually cheap.
    """

    def __init__(self, allocator: BlockAllocator, chunk_tokens: int, max_num_seqs: int) -> None:
        self.allocator = allocator
        self.chunk_tokens = chunk_tokens
        self.max_num_seqs = max_num_seqs
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; the caller has checked that it fits the cache when alone."""
        self.waiting.append(sequence)

    def schedule(self) -> Step:
        """Choose the rows of the next step and give them their blocks."""
        copies: list[tuple[int, int]] = []
        rows: list[Row] = []
        budget = self.chunk_tokens
        # Sequences that only need their next token come first: nobody's answer stalls
        # because somebody else's long prompt is being read.
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

    def advance(self, row: Row) -> None:
        """Record that a row was computed and publish the blocks it filled."""
        sequence, size = row.sequence, self.allocator.block_size
        sequence.num_computed += row.num_tokens
        while (end := (sequence.num_published + 1) * size) <= sequence.num_computed:
            sequence.parent = self.allocator.publish(
                sequence.block_table[sequence.num_published],
                sequence.parent,
                sequence.tokens[end - size : end],
            )
            sequence.num_published += 1

    def remove(self, sequence: Sequence) -> None:
        """Take a finished or canceled sequence out; what it computed stays in the cache."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._give_back(sequence)
        else:
            self.waiting.remove(sequence)

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give a running sequence blocks for so many tokens, if nobody has to give way."""
        return self._grow(sequence, num_tokens)

    def check_integrity(self) -> None:
        self.allocator.check_integrity([s.block_table for s in self.running])
        for sequence in self.running:
            assert sequence.num_computed <= len(sequence.block_table) * self.allocator.block_size

    def _add_row(
        self, rows: list[Row], sequence: Sequence, budget: int, may_preempt: bool = True
    ) -> int:
        """Append the sequence's row and return its number of tokens (0: no blocks for it)."""
        if sequence not in self.running:  # preempted for an earlier row of this step
            return 0
        # What attends both ways is computed in one go, however long it is.
        least = sequence.bidirectional_prefix.length - sequence.num_computed
        num_tokens = min(max(budget, least), len(sequence.tokens) - sequence.num_computed)
        while not self._grow(sequence, sequence.num_computed + num_tokens):
            victim = self.running[-1]
            if not may_preempt or victim is sequence or any(r.sequence is victim for r in rows):
                return 0
            self._preempt(victim)
        rows.append(Row(sequence, num_tokens))
        return num_tokens

    def _admit(self, sequence: Sequence, copies: list[tuple[int, int]]) -> bool:
        """Give a waiting sequence the cached prefix of its tokens; False when there is no room."""
        # The last token is always computed: its logits are what the sequence waits for.
        prefix = self.allocator.find_prefix(sequence.tokens[:-1], sequence.root)
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
            block = self._allocate_after(sequence)
            copies.append((prefix.tail, block))
            sequence.block_table.append(block)
            sequence.num_computed += prefix.tail_tokens
        if not sequence.num_generated:
            sequence.num_cached = sequence.num_computed
        return True

    def _grow(self, sequence: Sequence, num_tokens: int) -> bool:
        while len(sequence.block_table) * self.allocator.block_size < num_tokens:
            try:
                sequence.block_table.append(self._allocate_after(sequence))
            except NoFreeBlock:
                return False
        return True

    def _allocate_after(self, sequence: Sequence) -> int:
        table = sequence.block_table
        return self.allocator.allocate(after=table[-1] if table else None)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._give_back(sequence)
        self.waiting.appendleft(sequence)

    def _give_back(self, sequence: Sequence) -> None:
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
