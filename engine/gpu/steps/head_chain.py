"""The chain of a prediction head as CUDA graphs: ids and hidden states stay on the device."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from swiftchat.cuda.ops.sampling.sampling import advance, argmax, argmax_workspace
from swiftchat.engine.gpu.capture import Captured, captured
from swiftchat.engine.gpu.fused.ops import FusedOps
from swiftchat.engine.gpu.fused.pending import computed
from swiftchat.engine.gpu.inputs.fixed_batch import FixedBatch
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.prediction_head import PredictionHead

_RING_STEPS = 16  # more than the tokens of a chain
_FIRST_LENGTHS = (2, *range(1, 8))  # longer chains are captured when they are needed


class HeadChain:
    """Replays the chains of a head: one graph for each number of tokens.

    A graph computes one id after the other, each from the one before.
    """

    def __init__(self, head: PredictionHead, ops: CudaOps, ctx_size_tokens: int) -> None:
        """`ops` compute the layer of the head, in decode steps and without the host."""
        gpu, size, base = ops.gpu, head.cache.kv.block_size, head.decoder
        self._gpu, self._block_size = gpu, size
        self._inputs = FixedBatch(gpu.device, 1, 1, -(-ctx_size_tokens // size), size, {})
        self._row = self._inputs.decode_rows(slice(0, 1))
        residual = torch.zeros(1, base.config.hidden_size, device=gpu.device)
        # A step reads what the one before has written in the same graph.
        self._ops = FusedOps(ops, residual, reads_earlier=True)
        self._head = replace(head, decoder=Decoder(base.config, base.weights, self._ops))
        self._max_logit = torch.zeros(1, device=gpu.device)
        self._best = torch.zeros(1, dtype=torch.int32, device=gpu.device)
        self._argmax_workspace = argmax_workspace(gpu, 1)
        self._ring = torch.zeros(_RING_STEPS, 1, dtype=torch.int32).pin_memory()
        self._step = torch.zeros(1, dtype=torch.int64, device=gpu.device)
        self._num_steps = 0  # the value of `_step` after all launched steps
        self._graphs: dict[int, Captured[None]] = {}
        for num_tokens in _FIRST_LENGTHS:
            self._graph(num_tokens)

    @torch.inference_mode()
    def chain(self, token: int, position: int, table: Sequence[int], num_tokens: int) -> list[int]:
        """As `PredictionHead.chain`; waits for the device."""
        graph = self._graph(num_tokens)
        self._inputs.clear()
        self._inputs.put_tokens(0, [token], table, position)
        self._inputs.copy(1)
        graph.replay()
        begin = self._num_steps
        self._num_steps += num_tokens
        torch.cuda.current_stream().synchronize()
        ring = self._ring[:, 0].tolist()
        return [ring[step % _RING_STEPS] for step in range(begin, self._num_steps)]

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
        """Let the row be unused; before the first chain."""
        self._inputs.slot_mapping.fill_(-1)
        yield
        self._step.zero_()

    @torch.inference_mode()
    def _launch(self, num_tokens: int) -> None:
        x = self._head.cache.features.read(self._row.previous_slots(self._block_size))
        for _ in range(num_tokens):
            self._ops.begin()
            x, logits = self._head.forward(self._row, x)
            x, logits = computed(x), computed(logits)
            argmax(self._gpu, logits, self._max_logit, self._best, self._argmax_workspace)
            self._advance()

    def _advance(self) -> None:
        """Make the best id the token of the row."""
        batch, rows = self._row, self._row.decode
        assert rows is not None
        advance(
            self._gpu,
            self._best,
            tokens=batch.ids,
            positions=batch.positions,
            context_lens=rows.context_lens,
            slot_mapping=batch.slot_mapping,
            block_tables=rows.block_tables,
            counts=None,
            ring=self._ring,
            step=self._step,
            block_size=self._block_size,
            id_map=self._head.token_ids,
        )
