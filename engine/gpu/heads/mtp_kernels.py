"""The layer for multi-token prediction with our kernels, for captured steps of a few rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.sampling.sampling import argmax, argmax_workspace
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.schedule.batch import Batch, Span
from swiftchat.engine.speculation.head_blocks import BLOCK_TOKENS, HeadBlocks, PagedHeadCache
from swiftchat.engine.speculation.mtp import MtpLayer


class MtpBlocks(HeadBlocks):
    """The blocks of the KV cache of a model of one layer."""

    def __init__(self, cache: KVCache) -> None:
        (memory,) = cache.layers
        assert isinstance(memory, Tensor)
        super().__init__(memory)
        self.cache = cache


class PagedMtpCache(PagedHeadCache):
    """The keys and values of one sequence's tokens, for captured steps and for prompts."""

    def __init__(self, memory: MtpBlocks) -> None:
        super().__init__(memory)
        self.blocks = memory.cache

    def append(self, ids: Sequence[int], positions: Sequence[int]) -> Batch:
        """Return the batch that computes tokens after those in the cache; there must be room."""
        start, end = len(self.positions), len(self.positions) + len(ids)
        self.positions += positions
        slots = [
            self.table[i // BLOCK_TOKENS] * BLOCK_TOKENS + i % BLOCK_TOKENS
            for i in range(start, end)
        ]
        span = Span(0, len(ids), end, self.table)
        return Batch(list(ids), list(positions), slots, list(range(len(ids))), [span], [])


class MtpKernels:
    """`HeadKernels` of a layer whose decoder computes with `CudaOps`."""

    dtype = torch.float32

    def __init__(self, gpu: Gpu, layer: MtpLayer, cache: KVCache) -> None:
        self._gpu, self._layer, self._blocks = gpu, layer, MtpBlocks(cache)
        self.width = self.hidden_size = layer.hidden_size
        device, vocab_size = gpu.device, layer.vocab_size
        self._max_logit = torch.zeros(1, device=device)
        self._best = torch.zeros(1, dtype=torch.int32, device=device)
        self._argmax_workspace = argmax_workspace(gpu, 1)
        self.id_map = torch.arange(vocab_size, dtype=torch.int32, device=device)

    def new_cache(self) -> PagedMtpCache:
        return PagedMtpCache(self._blocks)

    def features(self, joined: Tensor) -> Tensor:
        return self._layer.features(joined)

    def forward_(self, x: Tensor, batch: DeviceBatch) -> None:
        x.copy_(self._layer.after(batch, x, self._blocks.cache))

    def best_id(self, x: Tensor) -> Tensor:
        logits = self._layer.logits(x)
        argmax(self._gpu, logits, self._max_logit, self._best, self._argmax_workspace)
        return self._best
