"""Decode steps as CUDA graphs: captured once for a number of rows, replayed for each token."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from swiftchat.cuda.ops.linear.layout import MAX_GEMV_ROWS
from swiftchat.cuda.ops.sampling.sampling import (
    advance,
    argmax,
    argmax_workspace,
    penalties,
    sample,
    sample_workspace,
)
from swiftchat.engine.gpu.capture import Captured, captured, compile_kernels
from swiftchat.engine.gpu.fused.deltas import FusedDeltas, needed_ranks
from swiftchat.engine.gpu.fused.step_decoder import StepDecoder
from swiftchat.engine.gpu.graph_sizes import DECODE_ROWS
from swiftchat.engine.gpu.inputs.decode_batch import DecodeBatch
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.linear.adapted import AdapterSet
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.schedule.sequence import TokenSequence

Part = Literal["step", "forward", "sampling"]


class DecodeGraphs:
    """Captures and replays decode steps, from the embeddings to the sampled tokens.

    `StepDecoder` computes them up to the logits.

    With several pipeline stages, the graph holds this stage's part of the step. All but the first
    stage read the residual stream from `residual`, fp32 [max_rows, hidden_size]; all but the last
    write it there. The last stage writes the tokens to `sampled`, int32 [max_rows], and
    `append_tokens` prepares the next step. With one stage the graph does that itself.

    There are graphs for the numbers of rows in `sizes`; other steps are padded. Rows may be tokens
    of one sequence, and have its blocks and states in common, only with `shares_blocks`.

    Two graphs divide a step of answers with grammars: "forward" computes the logits, "sampling"
    does the rest with the masks that the host has loaded meanwhile.
    """

    def __init__(
        self,
        decoder: Decoder,
        ops: CudaOps,
        cache: KVCache,
        batch: DecodeBatch,
        sizes: Sequence[int] = DECODE_ROWS,
        *,
        shares_blocks: bool = False,
    ) -> None:
        self._decoder, self._ops, self._cache, self.batch = decoder, ops, cache, batch
        self.sizes = sizes
        self._shares_blocks = shares_blocks
        self._graphs: dict[tuple[Part, int, bool], Captured[None]] = {}
        self._deltas: FusedDeltas | None = None
        self._computable: set[int] = set()  # sets of adapters
        config, gpu, max_rows = decoder.config, ops.gpu, batch.max_rows

        def empty(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(max_rows, *shape, dtype=dtype, device=gpu.device)

        # Unused rows are computed as well, so they must hold finite values.
        self.residual = torch.zeros(max_rows, config.hidden_size, device=gpu.device)
        self._plain = self._step_decoder(None)
        self._adapted = self._plain
        self.sampled = empty(dtype=torch.int32)
        self._logits = empty(config.vocab_size, dtype=torch.float32)
        self._maxima = empty(dtype=torch.float32)
        self._argmax = empty(dtype=torch.int32)
        self._argmax_workspace = argmax_workspace(gpu, max_rows)
        self._sample_workspace = sample_workspace(gpu, max_rows, config.vocab_size)

    @property
    def exchanges_directly(self) -> bool:
        """Whether there is one rank, or ranks add up their branches through peer buffers."""
        return self._plain.exchanges_directly

    def _step_decoder(self, deltas: FusedDeltas | None) -> StepDecoder:
        return StepDecoder(
            *(self._decoder, self._ops, self.residual),
            shares_blocks=self._shares_blocks,
            deltas=deltas,
        )

    def replay(self, num_rows: int, part: Part = "step", *, adapted: bool = False) -> None:
        """Start a decode step of the first rows, or a part, without waiting for the device."""
        self.graph(num_rows, part, adapted=adapted).replay()
        self.batch.num_steps += part != "forward"

    def forward(self, sequences: Sequence[TokenSequence]) -> Tensor:
        """Compute the logits of a decode step, fp32 [len(sequences), vocab_size], and no tokens.

        For one rank and stage. The device must be idle. The logits are valid until the next step.
        """
        num_rows = len(sequences)
        self.graph(num_rows, "forward")  # without memory for it, nothing is loaded
        self.batch.load(sequences, [0] * num_rows)
        self.replay(num_rows, "forward")
        return self._logits[:num_rows]

    def append_tokens(self, sequences: Sequence[TokenSequence]) -> None:
        """Make each sequence's newest token the input of its row.

        The sequences must be those of the last step, in its order, each with one more token; the
        device must be idle.
        """
        self.batch.update_block_tables(sequences)
        newest = [sequence.tokens[-1] for sequence in sequences]
        self.sampled[: len(newest)].copy_(torch.tensor(newest, dtype=torch.int32))
        self._advance(len(newest))

    def put_adapters(self, number: int, adapters: AdapterSet | None, num_sets: int) -> None:
        """Load a set of adapters for steps with `adapted`, or empty its place.

        The device becomes idle. Matrices of a larger rank than before discard their graphs.
        """
        torch.cuda.synchronize(self._ops.gpu.device)
        self._computable.discard(number)
        ranks = None if adapters is None else needed_ranks(adapters)
        older = self._deltas
        if ranks is None and older is None:
            return
        if older is None or not older.has_room(ranks or {}):
            assert ranks is not None
            self._deltas = self._new_deltas(ranks, num_sets, older)
            self._adapted = self._step_decoder(self._deltas)
            self.discard_adapted_graphs()
        assert self._deltas is not None
        self._deltas.put(number, adapters if ranks is not None else None)
        if ranks is not None:
            self._computable.add(number)

    def discard_adapted_graphs(self) -> None:
        self._graphs = {key: graph for key, graph in self._graphs.items() if not key[2]}

    def _new_deltas(
        self, ranks: dict[str, int], num_sets: int, older: FusedDeltas | None
    ) -> FusedDeltas:
        """Return deltas for these ranks and those of the older ones."""
        if older is not None:
            ranks = {name: max(rank, older.ranks[name]) for name, rank in ranks.items()}
        gpu, sets = self._ops.gpu, self.batch.adapter_sets[:MAX_GEMV_ROWS]
        deltas = FusedDeltas(gpu, self._decoder.weights, num_sets, sets, ranks, older=older)
        deltas.in_linear &= self._decoder.ranks.size == 1  # not measured on several GPUs
        return deltas

    def can_adapt(self, sequences: Sequence[TokenSequence]) -> bool:
        """Return whether steps with `adapted` compute the adapters of these sequences."""
        sets = {s.tuning.set_index for s in sequences if s.tuning is not None and s.has_adapters}
        size = next(size for size in self.sizes if size >= len(sequences))
        return sets <= self._computable and min(size, self.batch.max_rows) <= MAX_GEMV_ROWS

    def graph(self, num_rows: int, part: Part = "step", *, adapted: bool = False) -> Captured[None]:
        """Return the graph for a number of rows; capture it on first use."""
        key = self._key(num_rows, part, adapted)
        if key not in self._graphs:
            self._graphs[key] = self._capture(*key)
        return self._graphs[key]

    def _key(self, num_rows: int, part: Part, adapted: bool) -> tuple[Part, int, bool]:
        size = next(size for size in self.sizes if size >= num_rows)
        return part, size, adapted and part != "sampling"

    def _capture(self, part: Part, size: int, adapted: bool) -> Captured[None]:
        n, gpu = min(size, self.batch.max_rows), self._ops.gpu
        launches: dict[Part, Callable[[], None]] = {
            "step": partial(self.launch_kernels, n, adapted=adapted),
            "forward": partial(self._launch_forward, n, adapted=adapted),
            "sampling": partial(self._launch_sampling, n),
        }
        compile_kernels(gpu, partial(self._advance, n))  # for `append_tokens`
        return captured(launches[part], gpu=gpu, unused=self.batch.unused())

    def launch_kernels(self, n: int, *, adapted: bool = False) -> None:
        """Launch the kernels of a step of n rows one by one."""
        self._launch_forward(n, adapted=adapted)
        if self._decoder.stages.is_last:
            self._launch_sampling(n)

    def _launch_forward(self, n: int, *, adapted: bool) -> None:
        """Launch the kernels from the embeddings to the logits."""
        batch = self.batch.decode_rows(slice(0, n), shares_states=self._shares_blocks)
        decoder = self._adapted if adapted else self._plain
        decoder.launch(batch, self._cache, self._logits[:n])

    def _launch_sampling(self, n: int) -> None:
        """Launch the kernels from the logits to the next step's inputs, on the last stage."""
        self._sample(n, self._logits[:n])
        if self._decoder.stages.size == 1:
            self._advance(n)

    def _sample(self, n: int, logits: Tensor) -> None:
        """Apply bias, penalties, bans and masks to the logits in place, and sample n tokens."""
        batch, gpu = self.batch, self._ops.gpu
        maxima, ids = self._maxima[:n], self._argmax[:n]
        penalties(
            gpu,
            logits,
            batch.counts[:n],
            batch.bias[:n],
            batch.masks[:n],
            has_bias=batch.has_bias[:n],
            repeat_penalty=batch.repeat_penalty[:n],
            presence_penalty=batch.presence_penalty[:n],
            frequency_penalty=batch.frequency_penalty[:n],
            context_lens=batch.context_lens[:n],
            min_context_lens=batch.min_context_lens[:n],
            has_mask=batch.has_mask[:n],
        )
        argmax(gpu, logits, maxima, ids, self._argmax_workspace)
        sample(
            gpu,
            logits,
            max_logits=maxima,
            argmax_ids=ids,
            temperature=batch.temperature[:n],
            top_k=batch.top_k[:n],
            top_p=batch.top_p[:n],
            min_p=batch.min_p[:n],
            seeds=batch.seeds[:n],
            positions=batch.context_lens[:n],
            out=self.sampled[:n],
            workspace=self._sample_workspace,
        )

    def _advance(self, n: int) -> None:
        """Make the sampled tokens the input of the next step."""
        batch = self.batch
        advance(
            self._ops.gpu,
            self.sampled[:n],
            tokens=batch.ids[:n],
            positions=batch.positions[:n],
            context_lens=batch.context_lens[:n],
            slot_mapping=batch.slot_mapping[:n],
            block_tables=batch.block_tables[:n],
            counts=batch.counts[:n],
            ring=batch.ring,
            step=batch.step,
            block_size=batch.block_size,
        )
