"""A decoder whose matrices and embeddings depend on the adapters and soft prompts of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.engine.linear.adapted import AdapterSet, Selection, TableDelta
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.adapted_weights import adapted_weights
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.schedule.batch import Batch


@dataclass(frozen=True)
class EmbeddingChange:
    """The tokens `rows` of a batch: their embeddings are `given`, or changed by `table`."""

    rows: slice
    given: Tensor | None = None
    table: TableDelta | None = None


class AdaptedDecoder(Decoder):
    """Computes with the operations and weights of `base`; `embeddings` are set before a batch."""

    def __init__(self, base: Decoder, selection: Selection) -> None:
        weights = adapted_weights(base.weights, selection)
        super().__init__(base.config, weights, base.ops, base.ranks, base.stages)
        self.head = base.head
        self.embeddings: Sequence[EmbeddingChange] = ()

    def look_up(self, plan: Any) -> Tensor:
        x = super().look_up(plan)
        is_first = self.ranks.rank == 0  # the others' rows are added to those of rank 0
        for change in self.embeddings:
            if change.given is not None:
                x[change.rows] = change.given.to(x.device) if is_first else 0.0
            elif change.table is not None:
                change.table.apply_(x[change.rows], plan.ids[change.rows], adds=is_first)
        return x


def token_sets(batch: Batch) -> list[int]:
    """Return the number of each token's set of adapters, -1 for none."""
    numbers: list[int] = []
    for span in batch.spans:
        number = -1 if span.tuning is None else span.tuning.set_index
        numbers += [number] * span.num_tokens
    return numbers


def embedding_changes(
    batch: Batch, sets: Sequence[AdapterSet | None], scale: float
) -> list[EmbeddingChange]:
    """Return how a batch's embeddings differ from those of the table, before they are scaled."""
    found = []
    for span in batch.spans:
        tuning, start, end = span.tuning, span.start, span.start + span.num_tokens
        if tuning is None:
            continue
        first = batch.positions[start]
        num_virtual = 0
        if tuning.virtual is not None and tuning.virtual.embeddings is not None:
            given = tuning.virtual.embeddings[first : first + span.num_tokens]
            num_virtual = len(given)
            if num_virtual:
                rows = slice(start, start + num_virtual)
                found.append(EmbeddingChange(rows, given=given / scale))
        adapters = sets[tuning.set_index] if tuning.set_index >= 0 else None
        if adapters is not None and adapters.embed is not None and num_virtual < span.num_tokens:
            found.append(EmbeddingChange(slice(start + num_virtual, end), table=adapters.embed))
    return found


def embedded(table: LinearWeight, ids: Sequence[int], change: EmbeddingChange) -> Tensor:
    """Return the fp32 rows of a change, looking up `ids`, those of the whole batch, on the CPU."""
    if change.given is not None:
        return change.given
    assert change.table is not None
    own = torch.tensor(ids[change.rows])
    rows = table.rows(own).float()
    change.table.apply_(rows, own)
    return rows
