"""Ref-counted KV-cache blocks with a content-addressed prefix cache.

A block holds the keys and values of up to `block_size` consecutive tokens. It is in one of three
states: *free*; *used* (its reference count is above 0); or *cached*: unreferenced, but its content
is known and can be reused until the block is evicted (least recently used first).

The key of a block's content is (parent, tokens), where `parent` is the digest of all content before
the block (`engine.schedule.content`). So a key stands for one token sequence from position 0 on,
and is the same in every process. Sequences with a common prefix share its blocks, so undo,
regenerate and branches of a conversation need no operation of their own.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from swiftchat.engine.schedule.content import ROOT, ContentIndex, Digest, content_digest
from swiftchat.engine.schedule.states import Snapshot

# One copy of several blocks to another tier takes little longer than that of one.
_EVICTED_TOGETHER = 8


class NoFreeBlock(Exception):
    """All blocks are referenced: the scheduler must preempt a sequence or wait."""


@dataclass(frozen=True)
class Prefix:
    """The longest cached prefix of some tokens.

    `blocks` are full and can be shared; `parent` is the digest of the last one. `tail` is a block
    whose first `tail_tokens` slots also match, or None; it must be copied before an append. For a
    model with states, `snapshot` is the state after the prefix.
    """

    blocks: list[int]
    parent: Digest
    tail: int | None
    tail_tokens: int
    snapshot: Snapshot | None = None


@dataclass(frozen=True)
class Content:
    """The tokens of a block, and the digest of all before it."""

    parent: Digest
    tokens: tuple[int, ...]


OnEvict = Callable[[list[tuple[int, Content]]], None]


class BlockAllocator:
    """Allocates the `num_blocks` blocks of a KV cache; `KVCache` holds the tensors.

    `on_evict`, if set, is called with blocks and their content before they are used again; then
    several blocks are evicted together.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Bytes, which are searched fast: a model with states alone has a hundred thousand blocks.
        self._is_free = bytearray(b"\1") * num_blocks
        self._num_free = num_blocks
        self._ref_counts = [0] * num_blocks
        self._contents: dict[int, Content] = {}
        self._index: ContentIndex[int] = ContentIndex()
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self.on_evict: OnEvict | None = None

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free - self.num_cached

    def is_cached(self, block: int) -> bool:
        return block in self._cached

    def allocate(self, after: int | None = None) -> int:
        """Return a block with reference count 1 and no content; raise `NoFreeBlock`.

        Prefers the block that follows `after`, so that a sequence's blocks tend to be contiguous
        and attention can read them as one view.
        """
        if not self._num_free:
            self._evict(1 if self.on_evict is None else _EVICTED_TOGETHER)
        if not self._num_free:
            raise NoFreeBlock
        neighbor = self.num_blocks if after is None else after + 1
        is_free = neighbor < self.num_blocks and self._is_free[neighbor]
        block = neighbor if is_free else self._is_free.index(1)
        self._is_free[block] = False
        self._num_free -= 1
        self._ref_counts[block] = 1
        return block

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of these used or cached blocks."""
        for block in blocks:
            assert not self._is_free[block], f"block {block} is free"
            self._cached.pop(block, None)
            self._ref_counts[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each block of a sequence, given in the sequence's order.

        Blocks without references become cached if their content was published, else free. The
        end of the sequence is evicted first, so a prefix outlives its continuations.
        """
        for block in reversed(blocks):
            assert self._ref_counts[block] > 0, f"block {block} is not referenced"
            self._ref_counts[block] -= 1
            if self._ref_counts[block]:
                continue
            if block in self._contents:
                self._cached[block] = None
            else:
                self._set_free(block)

    def publish(self, block: int, parent: Digest, tokens: Sequence[int]) -> Digest:
        """Register the content of a used block; return its digest, the parent of its successors.

        If another block has the same content, this block stays unregistered and becomes free when
        released.
        """
        if self.find(parent, tokens) is not None:
            return content_digest(parent, tokens)
        assert block not in self._contents, f"block {block} was published before"
        self._contents[block] = Content(parent, tuple(tokens))
        return self._index.add(parent, tokens, block)

    def find(self, parent: Digest, tokens: Sequence[int]) -> int | None:
        """Return the used or cached block with this content."""
        return self._index.get(parent, tokens)

    def find_prefix(self, tokens: Sequence[int], root: Digest = ROOT) -> Prefix:
        """Find the longest cached prefix of the tokens; the caller must `acquire` its blocks."""
        size = self.block_size
        blocks, parent = self._index.prefix(root, tokens, size)
        start = len(blocks) * size
        tail, tail_tokens = self._index.longest(parent, tokens[start : start + size]) or (None, 0)
        return Prefix(blocks, parent, tail, tail_tokens)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise `AssertionError` unless every count and index agrees with these block tables."""
        counts = Counter(block for table in tables for block in table)
        num_referenced = self.num_blocks - self._ref_counts.count(0)
        assert num_referenced == len(counts) and all(
            self._ref_counts[block] == count for block, count in counts.items()
        ), "reference counts differ from the tables"
        cached, used = self._cached.keys(), counts.keys()
        assert all(0 <= block < self.num_blocks for block in (*cached, *used))
        assert self._num_free == self._is_free.count(1)
        assert self._num_free + len(cached) + len(used) == self.num_blocks
        assert cached.isdisjoint(used), "a cached block is used"
        assert not any(self._is_free[block] for block in (*cached, *used))
        assert cached == self._contents.keys() - used, "other blocks are cached than have content"
        assert sorted(self._index) == sorted(self._contents)
        for block, content in self._contents.items():
            assert self.find(content.parent, content.tokens) == block

    def _evict(self, num_blocks: int) -> None:
        """Free the blocks that were not used for the longest time, `num_blocks` at most."""
        evicted: list[tuple[int, Content]] = []
        while self._cached and len(evicted) < num_blocks:
            block, _ = self._cached.popitem(last=False)
            content = self._contents.pop(block)
            self._index.remove(content.parent, content.tokens)
            self._set_free(block)
            evicted.append((block, content))
        if evicted and self.on_evict is not None:
            self.on_evict(evicted)

    def _set_free(self, block: int) -> None:
        self._is_free[block] = True
        self._num_free += 1
