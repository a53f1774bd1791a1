"""Restores blocks of prompts from the tiers below the device, and fills these tiers."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from swiftchat.engine.api.protocol import Prefill
from swiftchat.engine.kv_store.disk import Disk
from swiftchat.engine.kv_store.host_memory import HostMemory
from swiftchat.engine.kv_store.run_saver import RunSaver
from swiftchat.engine.kv_store.speeds import Speeds
from swiftchat.engine.kv_store.tier import StoredBlock, Tier
from swiftchat.engine.schedule.blocks import BlockAllocator, NoFreeBlock
from swiftchat.engine.schedule.content import Digest, content_digest
from swiftchat.engine.schedule.sequence import TokenSequence

_SLICE_S = 0.04  # after this a cancel or another answer has its turn


class BlockStore:
    """The blocks in host memory and on disk, behind the prefix cache of the device.

    A restored block becomes a cached block of the device, which the scheduler then finds as any
    other. `block_bytes` is the size of one block. Without `host` and `disk`, the device has the
    only blocks. `warnings` are reported with the first answer.
    """

    def __init__(
        self,
        allocator: BlockAllocator,
        block_bytes: int = 0,
        host: HostMemory | None = None,
        disk: Disk | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        self.speeds = Speeds()
        self.num_restored = {"host": 0, "disk": 0}  # tokens since loading
        self._allocator, self._block_bytes = allocator, block_bytes
        self.host, self.disk = host, disk
        self._warnings = list(warnings)
        self._prefill_starts: WeakKeyDictionary[TokenSequence, float] = WeakKeyDictionary()
        self._tiers: list[Tier] = [tier for tier in (host, disk) if tier is not None]
        self._saver = None if disk is None else RunSaver(allocator, disk, self.speeds)
        if host is not None:
            allocator.on_evict = host.store

    @property
    def has_tiers(self) -> bool:
        return bool(self._tiers)

    @property
    def has_unsaved(self) -> bool:
        """Whether `save` has something to write."""
        return self._saver is not None and self._saver.has_work

    def prefill_started(self, sequences: Iterable[TokenSequence]) -> None:
        """Receive the sequences of a step, to measure the speed of prefill."""
        now = time.perf_counter()
        for sequence in sequences:
            if not sequence.num_generated:
                self._prefill_starts.setdefault(sequence, now)

    def prefill_ended(self, sequence: TokenSequence) -> None:
        """Measure the speed of prefill: the first token of this sequence was sampled."""
        if (started := self._prefill_starts.pop(sequence, None)) is not None:
            num_computed = sequence.num_prompt - sequence.num_cached
            self.speeds.measured_prefill(num_computed, time.perf_counter() - started)

    def progress(self, sequence: TokenSequence) -> Prefill:
        """Return the progress of a sequence whose blocks are being restored."""
        return Prefill(sum(sequence.num_restored.values()), len(sequence.tokens))

    def finish(self, sequence: TokenSequence) -> dict[str, Any]:
        """Write the blocks of a finished sequence in later calls of `save`, if it allows that.

        Return the fields of `Finished` on the tiers, with the warnings since the last call.
        """
        if self._saver is not None and sequence.params.saves_cache:
            self._saver.add(sequence.root, sequence.tokens)
        warnings, self._warnings = self._warnings, []
        if self.disk is not None:
            warnings += self.disk.warnings
            self.disk.warnings = []
        cached, restored = sequence.num_cached, sequence.num_restored
        return {
            "swapped_tokens": min(restored.get("host", 0), cached),
            "restored_tokens": min(restored.get("disk", 0), cached),
            "warnings": tuple(dict.fromkeys(warnings)),
        }

    def save(self) -> None:
        """Write one block to the disk, or find out that there is none to write."""
        if self._saver is not None:
            self._saver.write_next()

    def stats(self) -> dict[str, int]:
        """Return the number of blocks in each tier, and the tokens restored since loading."""
        return {
            **({"host_blocks": self.host.num_blocks} if self.host else {}),
            **({"disk_blocks": self.disk.num_blocks} if self.disk else {}),
            **{
                f"{tier.name}_tokens_restored": self.num_restored[tier.name] for tier in self._tiers
            },
        }

    def restore(self, sequence: TokenSequence, num_tokens: int) -> bool:
        """Copy blocks of the first `num_tokens` tokens of a waiting sequence to the device.

        Works for about 0.04 s; return whether it should be called again, before the sequence is
        admitted. The blocks of the device must suffice for the sequence.
        """
        tokens = sequence.tokens[:num_tokens]
        prefix = self._allocator.find_prefix(tokens, sequence.root)
        held, parent = list(prefix.blocks), prefix.parent
        minimum = prefix.tail_tokens + 1  # a block with fewer matching tokens is no gain
        self._allocator.acquire(held)
        if self.disk is not None:
            self.disk.refresh()
        deadline = time.perf_counter() + _SLICE_S
        try:
            while time.perf_counter() < deadline:
                rest = tokens[len(held) * self._allocator.block_size :]
                run = self._find(parent, rest, minimum)
                if not run:
                    return False
                tier, stored = run
                blocks = self._copy(tier, stored)
                if not blocks:
                    return False
                for block, one in zip(blocks, stored, strict=False):
                    parent = self._allocator.publish(block, one.parent, one.tokens)
                    self._count(sequence, tier, one.num_matching)
                held += blocks
                minimum = 1
                if stored[len(blocks) - 1].num_matching < self._allocator.block_size:
                    return False
            return True
        finally:
            self._allocator.release(held)

    def _find(
        self, parent: Digest, tokens: Sequence[int], minimum: int
    ) -> tuple[Tier, list[StoredBlock]] | None:
        """Return the next blocks of these tokens, all of one tier, as many as one read takes.

        None if there are none, or if computing them is faster.
        """
        for tier in self._tiers:
            stored = self._find_in(tier, parent, tokens, minimum)
            if stored:
                return tier, stored
        return None

    def _find_in(
        self, tier: Tier, parent: Digest, tokens: Sequence[int], minimum: int
    ) -> list[StoredBlock]:
        size, found = self._allocator.block_size, []
        for start in range(0, min(len(tokens), tier.blocks_per_read * size), size):
            one = tier.find(parent, tokens[start : start + size])
            if one is None or one.num_matching < minimum or not self._is_worth(tier, one):
                break
            found.append(one)
            if one.num_matching < size:
                break
            parent, minimum = content_digest(parent, one.tokens), 1
        return found

    def _is_worth(self, tier: Tier, one: StoredBlock) -> bool:
        prefill = tier.prefill_tokens_per_s(one.place) if isinstance(tier, Disk) else None
        return self.speeds.is_worth_reading(tier.name, self._block_bytes, one.num_matching, prefill)

    def _copy(self, tier: Tier, stored: list[StoredBlock]) -> list[int]:
        """Copy stored blocks to new blocks of the device, which the caller then holds.

        Returns these; fewer if the device has no more, or if a file is damaged.
        """
        blocks: list[int] = []
        with suppress(NoFreeBlock):
            for _ in stored:
                blocks.append(self._allocator.allocate(blocks[-1] if blocks else None))
        # Evicted blocks of the device may have taken the place of the last ones in host memory.
        present = 0
        for one in stored[: len(blocks)]:
            again = tier.find(one.parent, one.tokens)
            if again is None or again.place != one.place or again.tokens != one.tokens:
                break
            present += 1
        started, num_read = time.perf_counter(), 0
        try:
            num_read = tier.read(stored[:present], blocks[:present]) if present else 0
        finally:  # also without memory to read into
            self._allocator.release(blocks[num_read:])
        seconds = time.perf_counter() - started
        self.speeds.measured_read(tier.name, num_read * self._block_bytes, seconds)
        return blocks[:num_read]

    def _count(self, sequence: TokenSequence, tier: Tier, num_tokens: int) -> None:
        self.num_restored[tier.name] += num_tokens
        restored = sequence.num_restored
        restored[tier.name] = restored.get(tier.name, 0) + num_tokens
