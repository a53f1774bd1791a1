"""The keys and values of a head's layer on a GPU, in blocks that captured steps read."""

import weakref
from bisect import bisect_left
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

BLOCK_TOKENS = 64


class HeadBlocks:
    """Blocks for the tokens of all sequences, [num_blocks, …]. Captured steps hold the address."""

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self.free = list(range(len(memory)))


class PagedHeadCache:
    """A `ChainCache` in `HeadBlocks`; its blocks are free again when it is deleted.

    Token i is in slot i % 64 of block `table[i // 64]`, whatever its position.
    """

    def __init__(self, memory: HeadBlocks) -> None:
        self.positions: list[int] = []
        self.table: list[int] = []
        self._memory = memory
        weakref.finalize(self, memory.free.extend, self.table)

    def reserve(self, num_tokens: int) -> bool:
        """Make room for `num_tokens` more tokens; return whether there are enough blocks."""
        end, free = len(self.positions) + num_tokens, self._memory.free
        num_missing = -(-end // BLOCK_TOKENS) - len(self.table)
        if num_missing > len(free):
            return False
        self.table += [free.pop() for _ in range(num_missing)]
        return True

    def truncate(self, position: int) -> None:
        del self.positions[bisect_left(self.positions, position) :]

    def before(self, position: int) -> Self:
        """Return a copy of the tokens before a position; an empty one if blocks are missing."""
        copy = type(self)(self._memory)
        end = bisect_left(self.positions, position)
        if copy.reserve(end) and end:
            copy.positions = self.positions[:end]
            memory = self._memory.memory
            memory[copy.table] = memory[self.table[: len(copy.table)]]
        return copy


class PagedKeysValues(PagedHeadCache):
    """Of an EAGLE-3 head: the blocks are [num_blocks, 2 * num_kv_heads, 64, head_dim].

    Key heads come first, as in the KV cache of the kernels.
    """

    def append(self, positions: Sequence[int], keys_values: Tensor) -> Tensor:
        """Add those of new tokens, fp32 [2, n, num_kv_heads, head_dim]; return all of them.

        There must be room for them.
        """
        memory, device = self._memory.memory, self._memory.memory.device
        start, end = len(self.positions), len(self.positions) + len(positions)
        table = torch.tensor(self.table[: -(-end // BLOCK_TOKENS)], device=device)
        slots = torch.arange(start, end, device=device)
        rows = keys_values.transpose(0, 1).flatten(1, 2).to(memory.dtype)
        memory[table[slots // BLOCK_TOKENS], :, slots % BLOCK_TOKENS] = rows
        self.positions += positions
        known = memory[table].transpose(1, 2).flatten(0, 1)[:end].float()
        return known.view(end, 2, -1, known.shape[2]).transpose(0, 1)
