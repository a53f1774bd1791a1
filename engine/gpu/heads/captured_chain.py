"""A head's chain of proposals as CUDA graphs: ids and hidden states stay on the device."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.layers.embedding import gather_rows
from swiftchat.cuda.ops.sampling.sampling import advance
from swiftchat.engine.gpu.capture import capture
from swiftchat.engine.speculation.chain import ChainLayer
from swiftchat.engine.speculation.head_blocks import BLOCK_TOKENS, PagedHeadCache

CHAIN_ROWS = 8  # known tokens that the first graph computes
_RING_STEPS = 16  # more than the tokens of a chain
# Up to so many known tokens replay the graph, which takes the host less time than the layer.
_REPLAYED_TOKENS = 64


@dataclass(frozen=True)
class HeadRows:
    """Rows of a step of the head on the device, int32 [n].

    `positions` are those of the rotation, `context_lens` count the tokens in the cache, 0 for an
    unused row. `block_tables` is [n, max_blocks].
    """

    tokens: Tensor
    positions: Tensor
    context_lens: Tensor
    slot_mapping: Tensor
    block_tables: Tensor


def _rows(lines: Tensor, tables: Tensor, which: slice) -> HeadRows:
    tokens, positions, context_lens, slot_mapping = (line[which] for line in lines[:4])
    return HeadRows(tokens, positions, context_lens, slot_mapping, tables[which])


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

    def forward_(self, x: Tensor, rows: HeadRows) -> None:
        """Replace x [n, hidden_size] by the hidden states after the rows' tokens."""

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
        max_blocks = -(-num_blocks // 4) * 4  # rows of 16 bytes
        # One copy fills all: a line of n + 1 elements for each field, the last one for the row that
        # computes one id after the other, then n + 1 block tables.
        n, width = CHAIN_ROWS, 4
        self._host = torch.zeros(5 * (n + width) + (n + 1) * max_blocks, dtype=torch.int32)
        self._host = self._host.pin_memory()
        self._numpy = self._host.numpy()
        self._device = torch.zeros_like(self._host, device=gpu.device)
        self._line, self._max_blocks = n + width, max_blocks
        lines = self._device[: 5 * self._line].view(5, self._line)
        tables = self._device[5 * self._line :].view(n + 1, max_blocks)
        self._known = _rows(lines, tables, slice(0, n))
        self._next = _rows(lines, tables, slice(n, n + 1))
        self._last = lines[4, :1]  # the index of the newest known row
        self._joined = torch.zeros(n, kernels.width, dtype=kernels.dtype, device=gpu.device)
        self._hidden = torch.zeros(1, kernels.hidden_size, device=gpu.device)
        self._ring = torch.zeros(_RING_STEPS, 1, dtype=torch.int32).pin_memory()
        self._step = torch.zeros(1, dtype=torch.int64, device=gpu.device)
        self._num_steps = 0  # the value of `_step` after all launched steps
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._compile()
        for num_tokens in range(CHAIN_ROWS):  # longer chains are captured when they are needed
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
        n, start, first = len(ids), len(cache.positions), slice(0, len(ids))
        table = np.array(cache.table, dtype=np.int32)
        index = np.arange(start, start + n, dtype=np.int32)
        lines = self._numpy[: 5 * self._line].reshape(5, -1)
        tables = self._numpy[5 * self._line :].reshape(CHAIN_ROWS + 1, -1)
        lines[2], lines[3] = 0, -1  # unused rows
        lines[0, first], lines[1, first] = ids, np.arange(position, position + n)
        lines[2, first] = index + 1
        lines[3, first] = table[index // BLOCK_TOKENS] * BLOCK_TOKENS + index % BLOCK_TOKENS
        # `advance` moves the row on from the newest known token.
        lines[1, CHAIN_ROWS], lines[2, CHAIN_ROWS] = position + n - 1, start + n
        lines[4, 0] = n - 1
        tables[:, : len(table)] = table
        self._device.copy_(self._host, non_blocking=True)

    def _compile(self) -> None:
        """Compile the kernels, and run them with unused rows."""
        self._device[3 * self._line : 4 * self._line].fill_(-1)
        with self._gpu.collecting() as specs:
            self._launch(2)
        self._gpu.compile(specs)
        self._launch(2)
        torch.cuda.synchronize(self._gpu.device)
        self._step.zero_()

    def _graph(self, num_tokens: int) -> torch.cuda.CUDAGraph:
        if num_tokens not in self._graphs:
            self._graphs[num_tokens] = capture(lambda: self._launch(num_tokens))[0]
        return self._graphs[num_tokens]

    def _launch(self, num_tokens: int) -> None:
        x = self._kernels.features(self._joined)
        self._kernels.forward_(x, self._known)
        for i in range(num_tokens):
            if i == 0:
                gather_rows(self._gpu, x, self._last, self._hidden)
            else:
                self._kernels.forward_(self._hidden, self._next)
            self._launch_id()

    def _launch_id(self) -> None:
        """Make the best id after `_hidden` the token of the last row."""
        row = self._next
        advance(
            self._gpu,
            self._kernels.best_id(self._hidden),
            tokens=row.tokens,
            positions=row.positions,
            context_lens=row.context_lens,
            slot_mapping=row.slot_mapping,
            block_tables=row.block_tables,
            counts=None,
            ring=self._ring,
            step=self._step,
            block_size=BLOCK_TOKENS,
            id_map=self._kernels.id_map,
        )
