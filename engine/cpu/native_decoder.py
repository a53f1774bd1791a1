"""A decoder whose forward pass is one call of the native kernels."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from swiftchat.engine.cpu.fusion import fuse
from swiftchat.engine.cpu.low_rank import EmbeddingRows, NativeDeltas
from swiftchat.engine.cpu.program import Pool, Program, RunInputs, SpanRows
from swiftchat.engine.cpu.recorder import Recorder
from swiftchat.engine.cpu.recording import Recording
from swiftchat.engine.linear.adapted import Site
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.hidden_states import HiddenStates
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.engine.schedule.batch import Batch
from swiftchat.weights.architectures.config import ModelConfig


class NativeDecoder(Decoder):
    """A decoder on one rank and stage, recorded as a program for these weights and this cache.

    The cache must be `heads_first`. Raises `CannotRecordError` for a model that the kernels cannot
    compute. `deltas` are the changes of adapters in its `AdaptedWeight`s. The program keeps the
    hidden states of `hidden_layers`, as `HiddenStates` names them.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        cache: KVCache,
        ctx_size_tokens: int,
        pool: Pool,
        hidden_layers: Collection[int] = (),
    ) -> None:
        recorder = Recorder(config, weights, ctx_size_tokens)
        super().__init__(config, weights, recorder)
        self._ctx_size_tokens = ctx_size_tokens
        self._cache, self._recorder, self._pool = cache, recorder, pool
        self._hidden_layers = hidden_layers
        recording = recorder.record(cache, hidden_layers)
        self.deltas: Mapping[Site, NativeDeltas] = recording.deltas
        self._main = self._observed_of(recording)
        # Recorded when they are needed.
        self._other: _Observed | None = None
        self._pooled: _Observed | None = None
        two_dimensional = config.rope is not None and config.rope.two_dimensional
        self._inputs = _Inputs(cache.block_size, two_dimensional)

    @property
    def workspace_bytes(self) -> int:
        """The memory of activations and temporary results."""
        return self._main.program.memory_bytes

    def with_weights(self, weights: DecoderWeights) -> "NativeDecoder":
        """Return a decoder with the same cache and threads, recorded for other weights."""
        decoder = NativeDecoder(
            self.config,
            weights,
            self._cache,
            self._ctx_size_tokens,
            self._pool,
            self._hidden_layers,
        )
        decoder.head = self.head
        return decoder

    def reserve(self, num_tokens: int, num_logits: int) -> None:
        """Allocate memory for batches of this size; a larger batch allocates more."""
        self._main.program.reserve(num_tokens, num_logits)

    def grow(self) -> None:
        """Allocate memory for the present `deltas`."""
        self._main.program.grow()

    def forward(
        self, batch: Batch, cache: KVCache, hidden: HiddenStates | None = None
    ) -> Tensor | None:
        """As `Decoder.forward`; `cache` is the one that the decoder was made with."""
        assert cache is self._cache
        observed = self._main
        if hidden is not None and not observed.keeps(hidden):
            if self._other is None or not self._other.keeps(hidden):
                self._other = self._observed_of(self._recorder.record(cache, hidden.layers))
            observed = self._other
        logits = observed.program.run(self._inputs.of(batch))
        self._keep(batch, observed, hidden)
        return logits

    def _keep(
        self, batch: Batch, observed: "_Observed", hidden: HiddenStates | None = None
    ) -> None:
        """Copy the hidden states of a batch that has been computed to who reads them."""
        kept = self.kept(hidden)
        if kept is not None:
            observed.copy(kept)
            self.store_for_head(batch, kept)

    def forward_hidden(
        self, batch: Batch, cache: KVCache, hidden: HiddenStates | None = None
    ) -> Tensor | None:
        """As `Decoder.forward_hidden`; `cache` is the one that the decoder was made with."""
        assert cache is self._cache
        if self._pooled is None:
            layers = () if self.head is None else self.head.hidden_layers
            self._pooled = self._observed_of(self._recorder.record_hidden(cache, layers))
        pooled = self._pooled.program.run(self._inputs.of(batch))
        self._keep(batch, self._pooled, hidden)
        return pooled

    def _observed_of(self, recording: Recording) -> "_Observed":
        fuse(recording)  # which renumbers the buffers
        program = Program(
            self._pool, recording.ops, recording.buffers, recording.references, recording.output
        )
        return _Observed(program, recording.hidden)

    def forward_tuned(
        self, batch: Batch, sets: Sequence[int] | None, embeddings: EmbeddingRows | None
    ) -> Tensor | None:
        """As `forward`, with the set of adapters of each token, -1 for none, and embeddings."""
        inputs = self._inputs.of(batch)
        tokens = None if sets is None else torch.tensor(sets, dtype=torch.int32)
        inputs = replace(inputs, sets=tokens, embeddings=embeddings)
        logits = self._main.program.run(inputs)
        self._keep(batch, self._main)
        return logits


@dataclass(frozen=True)
class _Observed:
    """A program that also keeps hidden states: their buffers by layer."""

    program: Program
    buffers: Mapping[int, int]

    def keeps(self, hidden: HiddenStates) -> bool:
        return self.buffers.keys() >= set(hidden.layers)

    def copy(self, hidden: HiddenStates) -> None:
        """Copy the hidden states of the batch that has been run; those of no logits are left."""
        for layer in self.buffers.keys() & set(hidden.layers):
            hidden.found[layer] = self.program.buffer(self.buffers[layer]).clone()


class _Inputs:
    """Memory for the inputs of a batch, used again for the next one."""

    def __init__(self, block_size: int, two_dimensional: bool) -> None:
        self._block_size, self._two_dimensional = block_size, two_dimensional
        self._columns = _Ints(5)
        self._block_tables = _Ints(1)

    def of(self, batch: Batch) -> RunInputs:
        positions, second = batch.positions, None
        if self._two_dimensional:
            pairs = batch.position_pairs()
            positions, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        rows = self._columns.reserve(len(batch.ids))
        return RunInputs(
            ids=rows.write(0, batch.ids),
            positions=rows.write(1, positions),
            slots=rows.write(2, batch.slot_mapping),
            logits_rows=rows.write(3, batch.logits_indices),
            spans=self._spans(batch),
            second_positions=None if second is None else rows.write(4, second),
        )

    def _spans(self, batch: Batch) -> Sequence[SpanRows]:
        size = self._block_size
        used = [span.block_table[: -(-span.context_len // size)] for span in batch.spans]
        tables = self._block_tables.reserve(sum(map(len, used)))
        whole, end, spans = tables.write(0, list(chain(*used))), 0, []
        for span, blocks in zip(batch.spans, used, strict=True):
            start, end = end, end + len(blocks)
            prefix_len = span.bidirectional_prefix.length
            rows = (span.start, span.num_tokens, span.context_len)
            after = torch.tensor(span.after_slots, dtype=torch.int32) if span.after_slots else None
            spans.append(SpanRows(*rows, prefix_len, whole[start:end], span.state_slot, after))
        return spans


class _Ints:
    """Rows of int32 that grow as needed."""

    def __init__(self, num_rows: int) -> None:
        self._array = np.empty((num_rows, 0), dtype=np.int32)
        self._rows: Sequence[Tensor] = ()

    def reserve(self, length: int) -> "_Ints":
        if length > self._array.shape[1]:
            self._array = np.empty((len(self._array), max(64, 2 * length)), dtype=np.int32)
            self._rows = torch.from_numpy(self._array).unbind()
        return self

    def write(self, row: int, values: Sequence[int]) -> Tensor:
        self._array[row, : len(values)] = values
        return self._rows[row][: len(values)]
