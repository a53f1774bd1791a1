"""Embeddings of prompts: their hidden states pooled on the device, chunk by chunk."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import Row, TokenSequence


class Pooler:
    """Pools the hidden states of sequences with `SamplingParams.pooling`.

    Sums are fp32 on the device; only the embedding of a whole prompt is copied to the host. All
    ranks of all stages call `compute` with the same rows.
    """

    def __init__(self, decoder: Decoder, cache: KVCache) -> None:
        self._decoder, self._cache = decoder, cache
        self._sums: WeakKeyDictionary[TokenSequence, Tensor] = WeakKeyDictionary()

    def compute(self, rows: Sequence[Row]) -> dict[TokenSequence, list[float]]:
        """Compute scheduled rows; return the embeddings of those that reach the prompt's end.

        A value may be infinite or NaN if the weights are damaged.
        """
        if not rows:
            return {}
        batch = Batch.pack(rows, self._cache.block_size)
        hidden = self._decoder.forward_hidden(batch, self._cache)
        end, found = 0, {}
        for row in rows:
            start, end = end, end + len(row.pooled_positions)
            if hidden is not None and end > start:
                self._add(row.sequence, hidden[start:end])
            if row.reaches_end:
                found[row.sequence] = self._embedding(row.sequence)
        return found

    def _add(self, sequence: TokenSequence, hidden: Tensor) -> None:
        part = hidden.float().sum(0)
        earlier = self._sums.get(sequence)
        self._sums[sequence] = part if earlier is None else earlier.add_(part)

    def _embedding(self, sequence: TokenSequence) -> list[float]:
        """Return the embedding that the last stage has."""
        if self._decoder.stages.is_last:
            values = self._sums.pop(sequence)
            if sequence.params.pooling == "mean":
                values = values / sequence.num_prompt
        else:
            values = torch.empty(self._decoder.hidden_width)
        found: list[float] = self._decoder.stages.broadcast_from_last(values).tolist()
        return found
