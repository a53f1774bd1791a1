"""The forward pass of batches whose sequences use adapters or soft prompts, on each back end."""

from functools import cached_property
from typing import Protocol

from torch import Tensor

from swiftchat.engine.adapters.adapted_decoder import (
    AdaptedDecoder,
    embedded,
    embedding_changes,
    token_sets,
)
from swiftchat.engine.cpu.low_rank import EmbeddingRows
from swiftchat.engine.cpu.native_decoder import NativeDecoder
from swiftchat.engine.linear.adapted import AdapterSet, Selection, segments
from swiftchat.engine.model.adapted_weights import adapted_weights
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.schedule.batch import Batch


class TunedForward(Protocol):
    """Computes with the weights of a decoder and the adapters of a `Selection`.

    What it needs beyond the decoder is made when it is first needed.
    """

    def forward(self, batch: Batch) -> Tensor | None:
        """As `Decoder.forward`, with the adapters and soft prompts of the batch's sequences."""

    def put(self, number: int, adapters: AdapterSet | None) -> None:
        """Take the adapters of a set into account, before the selection has them."""


def tuned_forward(base: Decoder, cache: KVCache, selection: Selection) -> TunedForward:
    """Return the forward pass with adapters for the back end of a decoder."""
    if isinstance(base, NativeDecoder):
        return _NativeForward(base, selection)
    return _OperationsForward(base, cache, selection)


class _NativeForward:
    """By programs; see `TunedForward`."""

    def __init__(self, base: NativeDecoder, selection: Selection) -> None:
        self._base, self._selection = base, selection

    @cached_property
    def _adapted(self) -> NativeDecoder:
        return self._base.with_weights(adapted_weights(self._base.weights, self._selection))

    def forward(self, batch: Batch) -> Tensor | None:
        numbers, base = token_sets(batch), self._base
        changes = embedding_changes(batch, self._selection.sets, base.embedding_scale)
        rows = EmbeddingRows(len(batch.ids)) if changes else None
        for change in changes:
            assert rows is not None
            rows.set(change.rows.start, embedded(base.weights.embed, batch.ids, change))
        if any(number >= 0 for number in numbers):
            return self._adapted.forward_tuned(batch, numbers, rows)
        return base.forward_tuned(batch, None, rows)

    def put(self, number: int, adapters: AdapterSet | None) -> None:
        for site, deltas in self._adapted.deltas.items():
            deltas.set(number, None if adapters is None else adapters.deltas.get(site))
        self._adapted.grow()


class _OperationsForward:
    """By the operations of a back end; see `TunedForward`."""

    def __init__(self, base: Decoder, cache: KVCache, selection: Selection) -> None:
        self._base, self._cache, self._selection = base, cache, selection

    @cached_property
    def _adapted(self) -> AdaptedDecoder:
        return AdaptedDecoder(self._base, self._selection)

    def forward(self, batch: Batch) -> Tensor | None:
        numbers, selection = token_sets(batch), self._selection
        scale = self._base.embedding_scale
        self._adapted.embeddings = embedding_changes(batch, selection.sets, scale)
        selection.tokens = segments(numbers)
        selection.logits = segments([numbers[i] for i in batch.logits_indices])
        return self._adapted.forward(batch, self._cache)

    def put(self, number: int, adapters: AdapterSet | None) -> None:
        return
