"""A head's chain of proposals as CUDA graphs: ids and hidden states stay on the device."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.layers.embedding import gather_rows
from swiftchat.cuda.ops.sampling.sampling import advance
from swiftchat.engine.gpu.capture import Captured, captured
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch
from swiftchat.engine.gpu.inputs.fixed_batch import FixedBatch
from swiftchat.engine.speculation.chain import ChainLayer
from swiftchat.engine.speculation.head_blocks import BLOCK_TOKENS, PagedHeadCache

CHAIN_ROWS = 8  # known tokens that the first graph computes
_RING_STEPS = 16  # more than the tokens of a chain
# Up to so many known tokens replay the graph, which takes the host less time than the layer.
_REPLAYED_TOKENS = 64


class HeadKernels(Protocol):
    """What a head computes in a captured step. Hidden states are fp32."""

    @property
    def width(self) -> int:
        """The size of joined hidden states."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype:
        """That of the joined hidden states."""

    def features(self, joined: Tensor) -> Tensor:
        """Return what the layer reads of joined hidden states [n, width], [n, hidden_size]."""

    def forward_(self, x: Tensor, batch: DeviceBatch) -> None:
        """Replace x [n, hidden_size] by the hidden states after the tokens of decode rows.

        The positions are those of the rotation, the context lengths count tokens in the cache.
        """

    @property
    def id_map(self) -> Tensor:
        """The id of the model for each one of the head, int32 [draft_vocab_size]."""

    def new_cache(self) -> PagedHeadCache: ...
    def best_id(self, x: Tensor) -> Tensor:
        """Return the head's most probable id after a hidden state [1, hidden_size], int32 [1]."""


class CapturedChain:
    """A `ChainLayer` whose chains are one graph each; prompts are computed by `layer`.

    A graph computes up to `CHAIN_ROWS` known tokens and the id after the last of them, then one id
    after the other from the one before.
    """

    chain_rows = CHAIN_ROWS

    def __init__(self, gpu: Gpu, layer: ChainLayer, kernels: HeadKernels, num_blocks: int) -> None:
        """`num_blocks` are those of all caches."""
        self._gpu, self._layer, self._kernels = gpu, layer, kernels
        n = CHAIN_ROWS
        # One more row computes one id after the other.
        self._inputs = FixedBatch(gpu.device, n + 1, n + 1, num_blocks, BLOCK_TOKENS, {})
        self._known = self._inputs.decode_rows(slice(0, n))
        self._next = self._inputs.decode_rows(slice(n, n + 1))
        self._newest = self._inputs.logits_indices[:1]  # of the known rows
        self._joined = torch.zeros(n, kernels.width, dtype=kernels.dtype, device=gpu.device)
        self._hidden = torch.zeros(1, kernels.hidden_size, device=gpu.device)
        self._ring = torch.zeros(_RING_STEPS, 1, dtype=torch.int32).pin_memory()
        self._step = torch.zeros(1, dtype=torch.int64, device=gpu.device)
        self._num_steps = 0  # the value of `_step` after all launched steps
        self._graphs: dict[int, Captured[None]] = {}
        for num_tokens in (2, *range(CHAIN_ROWS)):  # longer ones are captured when they are needed
            self._graph(num_tokens)

    @property
    def name(self) -> str:
        return self._layer.name

    @property
    def hidden_layers(self) -> Collection[int]:
        return self._layer.hidden_layers

    def new_cache(self) -> PagedHeadCache:
        return self._kernels.new_cache()

    def join(self, hidden: Mapping[int, Tensor]) -> Tensor:
        return self._layer.join(hidden)

    def compute(
        self, joined: Tensor, ids: Sequence[int], position: int, cache: PagedHeadCache
    ) -> None:
        if len(ids) > _REPLAYED_TOKENS:
            self._layer.compute(joined, ids, position, cache)
            return
        for first in range(0, len(ids), CHAIN_ROWS):
            part = slice(first, first + CHAIN_ROWS)
            self.chain(joined[part], ids[part], position + first, cache, 0)

    def chain(
        self,
        joined: Tensor,
        ids: Sequence[int],
        position: int,
        cache: PagedHeadCache,
        num_tokens: int,
    ) -> list[int]:
        n, graph = len(ids), self._graph(num_tokens)
        self._load(ids, position, cache)
        self._joined[:n].copy_(joined)
        graph.replay()
        begin = self._num_steps
        self._num_steps += num_tokens
        cache.positions += range(position, position + n)
        torch.cuda.current_stream().synchronize()
        ring = self._ring[:, 0].tolist()
        return [ring[step % _RING_STEPS] for step in range(begin, self._num_steps)]

    def _load(self, ids: Sequence[int], position: int, cache: PagedHeadCache) -> None:
        """Assign the rows of the known tokens, and the last one; the device is idle."""
        inputs, n, start = self._inputs, len(ids), len(cache.positions)
        inputs.clear()
        inputs.put_tokens(0, ids, cache.table, start, position)
        # `advance` moves the row on from the newest known token.
        inputs.put_tokens(CHAIN_ROWS, ids[-1:], cache.table, start + n - 1, position + n - 1)
        inputs.host["slot_mapping"][CHAIN_ROWS] = -1
        inputs.host["logits_indices"][0] = n - 1
        inputs.copy(CHAIN_ROWS + 1)

    def _graph(self, num_tokens: int) -> Captured[None]:
        if num_tokens not in self._graphs:
            self._graphs[num_tokens] = captured(
                partial(self._launch, num_tokens),
                gpu=self._gpu,
                unused=self._unused(),
                is_loaded=bool(self._graphs),  # the first one has all kernels
            )
        return self._graphs[num_tokens]

    @contextmanager
    def _unused(self) -> Iterator[None]:
        """Let all rows be unused; before the first chain."""
        self._inputs.slot_mapping.fill_(-1)
        yield
        self._step.zero_()

    def _launch(self, num_tokens: int) -> None:
        x = self._kernels.features(self._joined)
        self._kernels.forward_(x, self._known)
        for i in range(num_tokens):
            if i == 0:
                gather_rows(self._gpu, x, self._newest, self._hidden)
            else:
                self._kernels.forward_(self._hidden, self._next)
            self._launch_id()

    def _launch_id(self) -> None:
        """Make the best id after `_hidden` the token of the last row."""
        batch, rows = self._next, self._next.decode
        assert rows is not None
        advance(
            self._gpu,
            self._kernels.best_id(self._hidden),
            tokens=batch.ids,
            positions=batch.positions,
            context_lens=rows.context_lens,
            slot_mapping=batch.slot_mapping,
            block_tables=rows.block_tables,
            counts=None,
            ring=self._ring,
            step=self._step,
            block_size=BLOCK_TOKENS,
            id_map=self._kernels.id_map,
        )
