"""Ref-counted KV-cache blocks with a content-addressed prefix cache.

A block holds the keys and values of up to `block_size` consecutive tokens. It is in one of three
states: *free*; *used* (its reference count is above 0); or *cached*: unreferenced, but its content
is known and can be reused until the block is evicted (least recently used first).

The key of a block's content is (parent, tokens), where `parent` is the serial number of the
published block before it, or ROOT for the first block. Serials are never reused, so a key stands
for exactly one token sequence from position 0 on, without hash collisions. In a bidirectional
prefix, keys and values depend on the whole prefix; the first block's parent is then the prefix
itself instead of ROOT, so that only the same prefix matches. Sequences with a common prefix share
its blocks, so undo, regenerate and branches of a conversation need no operation of their own.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ROOT = 0
Parent = int | tuple[int, ...]


class NoFreeBlock(Exception):
    """All blocks are referenced: the scheduler must preempt a sequence or wait."""


@dataclass(frozen=True)
class Prefix:
    """The longest cached prefix of some tokens.

    `blocks` are full and can be shared; `parent` is the serial of the last one. `tail` is a block
    whose first `tail_tokens` slots also match, or None; it must be copied before an append.
    """

    blocks: list[int]
    parent: Parent
    tail: int | None
    tail_tokens: int


@dataclass(frozen=True)
class _Content:
    parent: Parent
    tokens: tuple[int, ...]
    serial: int


class BlockAllocator:
    """Allocates the `num_blocks` blocks of a KV cache; `KVCache` holds the tensors."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = set(range(num_blocks))
        self._ref_counts = [0] * num_blocks
        self._contents: dict[int, _Content] = {}
        self._by_content: dict[tuple[Parent, tuple[int, ...]], int] = {}
        self._children: dict[Parent, set[int]] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._next_serial = ROOT + 1

    @property
    def num_free(self) -> int:
        return len(self._free)

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
        if self._free:
            neighbor = -1 if after is None else after + 1
            block = neighbor if neighbor in self._free else min(self._free)
            self._free.remove(block)
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            self._evict(block)
        else:
            raise NoFreeBlock
        self._ref_counts[block] = 1
        return block

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of these used or cached blocks."""
        for block in blocks:
            assert block not in self._free, f"block {block} is free"
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
                self._free.add(block)

    def publish(self, block: int, parent: Parent, tokens: Sequence[int]) -> int:
        """Register the content of a used block; return its serial, the parent of its successors.

        If another block has the same content, return that block's serial; this block then stays
        unregistered and becomes free when released.
        """
        key = (parent, tuple(tokens))
        known = self._by_content.get(key)
        if known is not None:
            return self._contents[known].serial
        assert block not in self._contents, f"block {block} was published before"
        serial, self._next_serial = self._next_serial, self._next_serial + 1
        self._contents[block] = _Content(parent, key[1], serial)
        self._by_content[key] = block
        self._children.setdefault(parent, set()).add(block)
        return serial

    def find_prefix(self, tokens: Sequence[int], root: Parent = ROOT) -> Prefix:
        """Find the longest cached prefix of the tokens; the caller must `acquire` its blocks."""
        blocks: list[int] = []
        parent, size = root, self.block_size
        while (start := len(blocks) * size) + size <= len(tokens):
            block = self._by_content.get((parent, tuple(tokens[start : start + size])))
            if block is None:
                break
            blocks.append(block)
            parent = self._contents[block].serial
        rest = tuple(tokens[start : start + size])
        tail, tail_tokens = None, 0
        for block in self._children.get(parent, ()):
            length = _common_length(self._contents[block].tokens, rest)
            if length > tail_tokens:
                tail, tail_tokens = block, length
        return Prefix(blocks, parent, tail, tail_tokens)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise `AssertionError` unless every count and index agrees with these block tables."""
        counts = [0] * self.num_blocks
        for table in tables:
            for block in table:
                counts[block] += 1
        assert counts == self._ref_counts, "reference counts differ from the tables"
        free, cached = self._free, set(self._cached)
        used = {block for block, count in enumerate(counts) if count}
        assert len(free) + len(cached) + len(used) == self.num_blocks
        assert free | cached | used == set(range(self.num_blocks))
        assert cached <= self._contents.keys(), "a cached block has no content"
        assert not free & self._contents.keys(), "a free block has content"
        assert {(c.parent, c.tokens): b for b, c in self._contents.items()} == self._by_content
        children: dict[Parent, set[int]] = {}
        for block, content in self._contents.items():
            children.setdefault(content.parent, set()).add(block)
        assert children == self._children

    def _evict(self, block: int) -> None:
        content = self._contents.pop(block)
        del self._by_content[content.parent, content.tokens]
        siblings = self._children[content.parent]
        siblings.remove(block)
        if not siblings:
            del self._children[content.parent]


def _common_length(a: Sequence[int], b: Sequence[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
