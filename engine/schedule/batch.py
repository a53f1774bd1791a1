"""The input of one forward pass: the tokens of all its rows, packed one after the other."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Self

from swiftchat.engine.schedule.sequence import Row, TokenSequence
from swiftchat.engine.schedule.tuning import SequenceTuning
from swiftchat.weights.architectures.parts.prefix_lm import CAUSAL, BidirectionalPrefix


@dataclass(frozen=True)
class Span:
    """The packed tokens `start : start + num_tokens` of one row.

    They are the last of `context_len` tokens in the blocks of `block_table` and attend to all of
    these, except that tokens before `bidirectional_prefix` ends also attend to later ones in it.
    `state_slot` is the slot of the row's states, for models with states; `next_state_slot` receives
    those after the row. If some of its tokens are proposed ones, `after_slots` instead receive the
    states after each of them.
    """

    start: int
    num_tokens: int
    context_len: int
    block_table: list[int]
    bidirectional_prefix: BidirectionalPrefix = CAUSAL
    tuning: SequenceTuning | None = None
    state_slot: int = -1
    next_state_slot: int = -1
    after_slots: tuple[int, ...] = ()

    @property
    def step_slots(self) -> list[tuple[int, int]]:
        """The slots before and after each token of a row with one token or with `after_slots`."""
        after = self.after_slots or (self.next_state_slot,)
        return list(pairwise((self.state_slot, *after)))


@dataclass(frozen=True)
class Scored:
    """The logits `start : start + len(targets)` of a batch, whose next tokens are `targets`."""

    row: Row
    start: int
    targets: list[int]


@dataclass(frozen=True)
class Batch:
    """`ids`, `positions` and `slot_mapping` of all packed tokens, and the `spans` of the rows.

    Slot s is offset `s % block_size` in block `s // block_size`. `logits_indices` are the packed
    tokens whose logits are computed. Of these logits, `sampled_logits` are the indices for the
    next tokens of the `sampled_rows`, and the rest are for the `scored` rows. The logits after the
    proposed tokens of a sampled row follow that of its next token. A batch of rows with
    embeddings has no logits; `logits_indices` are then the tokens whose hidden states are pooled,
    those of each row after the other.
    """

    ids: list[int]
    positions: list[int]
    slot_mapping: list[int]
    logits_indices: list[int]
    spans: list[Span]
    sampled_rows: list[Row]
    sampled_logits: list[int] = field(default_factory=list)
    scored: list[Scored] = field(default_factory=list)

    @property
    def logits_slots(self) -> list[int]:
        """The slots of the tokens whose logits are computed."""
        return [self.slot_mapping[i] for i in self.logits_indices]

    def previous_slots(self, block_size: int) -> list[int]:
        """Return the slot of the token before each one; -1 for the first of a sequence."""
        slots: list[int] = []
        for span in self.spans:
            first = self.positions[span.start]
            slots += _slots(span.block_table, first - 1, first, block_size) if first else [-1]
            slots += self.slot_mapping[span.start : span.start + span.num_tokens - 1]
        return slots

    def position_pairs(self) -> list[tuple[int, int]]:
        """Return both positions of every token, for models with two-dimensional positions."""
        return [
            span.bidirectional_prefix.positions(position)
            for span in self.spans
            for position in self.positions[span.start : span.start + span.num_tokens]
        ]

    def also_sampled(self, rows: Iterable[tuple[Row, TokenSequence]]) -> Self:
        """Return the batch with more sampled rows: other sequences with the tokens of a row."""
        index = {
            row.sequence: i for row, i in zip(self.sampled_rows, self.sampled_logits, strict=True)
        }
        pairs = [(Row(twin, row.num_tokens), index[row.sequence]) for row, twin in rows]
        return replace(
            self,
            sampled_rows=[*self.sampled_rows, *(row for row, _ in pairs)],
            sampled_logits=[*self.sampled_logits, *(i for _, i in pairs)],
        )

    @classmethod
    def pack(cls, rows: Sequence[Row], block_size: int) -> Self:
        """Pack the rows of a scheduled step; their blocks must be allocated."""
        ids: list[int] = []
        positions: list[int] = []
        slot_mapping: list[int] = []
        logits_indices: list[int] = []
        sampled_logits: list[int] = []
        scored: list[Scored] = []
        spans: list[Span] = []
        for row in rows:
            sequence, table = row.sequence, row.sequence.block_table
            first, end = sequence.num_computed, sequence.num_computed + row.num_tokens
            prefix, tuning = sequence.bidirectional_prefix, sequence.tuning
            num_proposed = len(row.proposed)
            last = end + num_proposed
            slot = sequence.state_slot
            next_slot = sequence.next_state_slot if row.num_tokens == 1 else slot
            after = tuple(sequence.verified_slots)
            place = len(ids), last - first, last
            spans.append(Span(*place, table, prefix, tuning, slot, next_slot, after))
            ids += sequence.tokens[first:end]
            ids += row.proposed
            positions += range(first, last)
            slot_mapping += _slots(table, first, last, block_size)
            if row.scored_positions:
                start = spans[-1].start - first
                targets = [sequence.tokens[p + 1] for p in row.scored_positions]
                scored.append(Scored(row, len(logits_indices), targets))
                logits_indices += (start + p for p in row.scored_positions)
            if sequence.params.pooling is not None:
                logits_indices += (spans[-1].start - first + p for p in row.pooled_positions)
            elif row.reaches_end:
                sampled_logits.append(len(logits_indices))
                logits_indices += range(len(ids) - 1 - num_proposed, len(ids))
        sampled_rows = [
            row for row in rows if row.reaches_end and row.sequence.params.pooling is None
        ]
        return cls(
            ids,
            positions,
            slot_mapping,
            logits_indices,
            spans,
            sampled_rows,
            sampled_logits,
            scored,
        )


def _slots(table: list[int], first: int, last: int, block_size: int) -> Iterator[int]:
    """Yield the slots of the positions `first : last`, a block's after the other."""
    for start in range(first - first % block_size, last, block_size):
        slot = table[start // block_size] * block_size
        yield from range(slot + max(first - start, 0), slot + min(last - start, block_size))


def padded_rows(num_rows: int) -> int:
    """Round up to a multiple of 4, so that each field of 4-byte elements starts at 16 bytes."""
    return -(-num_rows // 4) * 4
