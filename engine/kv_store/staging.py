"""Main memory through which blocks of the device reach files and come back."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from swiftchat.engine.kv_store.block_copies import Tensors, byte_views
from swiftchat.engine.kv_store.run_file import Views

_STAGED_BLOCKS = 16


class Staging(Protocol):
    """Views of the bytes of blocks."""

    num_blocks: int

    def to_write(self, block: int) -> Views:
        """Return the bytes of a block of the device; valid until the next call."""

    def to_read(self, blocks: Sequence[int]) -> list[Views]:
        """Return where to put the bytes of at most `num_blocks` blocks of the device."""

    def finish_read(self, blocks: Sequence[int]) -> None:
        """Bring the bytes of the first views of `to_read` to the device."""


class CpuStaging:
    """Blocks of a cache that is itself in main memory."""

    num_blocks = _STAGED_BLOCKS

    def __init__(self, cache: Tensors) -> None:
        self._cache = cache

    def to_write(self, block: int) -> Views:
        return byte_views(self._cache, block)

    def to_read(self, blocks: Sequence[int]) -> list[Views]:
        return [byte_views(self._cache, block) for block in blocks]

    def finish_read(self, blocks: Sequence[int]) -> None:
        """Do nothing: the bytes are in the cache."""


class CopiedStaging:
    """Main memory for some blocks of a GPU, pinned unless a test uses it on a CPU.

    It is allocated on first use.
    """

    num_blocks = _STAGED_BLOCKS

    def __init__(self, cache: Tensors, *, pinned: bool = True) -> None:
        self._cache, self._pinned = cache, pinned
        self._blocks: list[Tensor] = []  # for each tensor [num_blocks, num_layers, ...]

    def to_write(self, block: int) -> Views:
        for tensor, staged in zip(self._cache, self._allocated(), strict=True):
            staged[0].copy_(tensor[:, block], non_blocking=True)
        self._wait()
        return self._views(0)

    def to_read(self, blocks: Sequence[int]) -> list[Views]:
        self._allocated()
        self._wait()  # for earlier copies from this memory
        return [self._views(index) for index in range(len(blocks))]

    def finish_read(self, blocks: Sequence[int]) -> None:
        for tensor, staged in zip(self._cache, self._blocks, strict=True):
            for index, block in enumerate(blocks):
                tensor[:, block].copy_(staged[index], non_blocking=True)

    def _allocated(self) -> list[Tensor]:
        if not self._blocks:
            self._blocks = [
                torch.empty(
                    (self.num_blocks, tensor.shape[0], *tensor.shape[2:]),
                    dtype=tensor.dtype,
                    pin_memory=self._pinned,
                )
                for tensor in self._cache
            ]
        return self._blocks

    def _views(self, index: int) -> Views:
        return [[staged[index].view(-1).view(torch.uint8).numpy().data] for staged in self._blocks]

    def _wait(self) -> None:
        if self._pinned:
            torch.cuda.current_stream().synchronize()
