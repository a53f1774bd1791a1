"""Swap: blocks that the device evicts, in main memory."""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.engine.kv_store.block_copies import CopyBlocks, Tensors, block_bytes, like
from swiftchat.engine.kv_store.tier import StoredBlock
from swiftchat.engine.schedule.blocks import Content
from swiftchat.engine.schedule.content import ContentIndex, Digest

_CHUNK_BYTES = 256 << 20  # pinned at a time: pinning takes about 0.3 s per GB
_BLOCKS_PER_READ = 64


class HostMemory:
    """A tier of at most `max_bytes`, pinned if the device is a GPU; least recently used is dropped.

    `copy` copies in the order of the device's other work, so that `store` need not wait.
    """

    name = "host"
    blocks_per_read = _BLOCKS_PER_READ

    def __init__(self, device: Tensors, max_bytes: int, copy: CopyBlocks, *, pinned: bool) -> None:
        self._device, self._copy, self._pinned = device, copy, pinned
        size_bytes = block_bytes(device)
        self._chunk_blocks = max(1, min(_CHUNK_BYTES, max_bytes) // size_bytes)
        self._max_chunks = max_bytes // (size_bytes * self._chunk_blocks)
        self._chunks: list[tuple[Tensor, ...]] = []
        self._free: list[int] = []
        self._index: ContentIndex[int] = ContentIndex()
        self._contents: OrderedDict[int, Content] = OrderedDict()  # by slot

    @property
    def num_blocks(self) -> int:
        return len(self._contents)

    def store(self, evicted: Sequence[tuple[int, Content]]) -> None:
        """Copy blocks of the device, with their contents, before they are used again."""
        copies: dict[int, int] = {}  # by slot, which a later block may take over
        try:
            for block, content in evicted:
                known = self._index.get(content.parent, content.tokens)
                if known is not None:
                    self._contents.move_to_end(known)
                elif (slot := self._allocate()) is not None:
                    self._index.add(content.parent, content.tokens, slot)
                    self._contents[slot] = content
                    copies[slot] = block
            for chunk, pairs in self._by_chunk(list(copies.items())):
                self._copy(self._device, chunk, [(block, inner) for inner, block in pairs])
        except Exception:  # no memory: the slots may not hold what they should
            for slot in copies:
                content = self._contents.pop(slot)
                self._index.remove(content.parent, content.tokens)
                self._free.append(slot)
            raise

    def find(self, parent: Digest, tokens: Sequence[int]) -> StoredBlock | None:
        found = self._index.longest(parent, tokens)
        if found is None:
            return None
        slot, length = found
        return StoredBlock(parent, self._contents[slot].tokens, length, slot)

    def read(self, stored: Sequence[StoredBlock], blocks: Sequence[int]) -> int:
        slots = [one.place for one in stored]
        for chunk, pairs in self._by_chunk(list(zip(slots, blocks, strict=True))):
            self._copy(chunk, self._device, pairs)
        if self._pinned:
            torch.cuda.current_stream().synchronize()  # its time is measured
        for slot in reversed(slots):  # so that the end of a prefix is dropped before its beginning
            self._contents.move_to_end(slot)
        return len(blocks)

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless the index, the contents and the free slots agree."""
        assert sorted(self._index) == sorted(self._contents)
        slots = sorted([*self._free, *self._contents])
        assert slots == list(range(len(self._chunks) * self._chunk_blocks))

    def _allocate(self) -> int | None:
        if not self._free and len(self._chunks) < self._max_chunks:
            first = len(self._chunks) * self._chunk_blocks
            self._chunks.append(like(self._device, self._chunk_blocks, pinned=self._pinned))
            self._free = list(range(first, first + self._chunk_blocks))
        if self._free:
            return self._free.pop()
        if not self._contents:
            return None
        slot, content = self._contents.popitem(last=False)
        self._index.remove(content.parent, content.tokens)
        return slot

    def _by_chunk(
        self, pairs: Sequence[tuple[int, int]]
    ) -> list[tuple[tuple[Tensor, ...], list[tuple[int, int]]]]:
        """Group pairs (slot, block) by the slot's chunk, with slots counted from its beginning."""
        groups: dict[int, list[tuple[int, int]]] = {}
        for slot, block in pairs:
            chunk, inner = divmod(slot, self._chunk_blocks)
            groups.setdefault(chunk, []).append((inner, block))
        return [(self._chunks[chunk], group) for chunk, group in groups.items()]
