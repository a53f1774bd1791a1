"""The rows of one forward pass, packed: tokens of prefill and decode rows side by side."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Self

from swiftchat.engine.schedule.scheduler import Row
from swiftchat.weights.architectures.prefix_lm import CAUSAL, BidirectionalPrefix


@dataclass(frozen=True)
class Span:
    """One row's place in the batch.

    Its tokens are `start : start + num_tokens` of the packed ones; they attend to all
    `context_len` tokens in the blocks of `block_table`, of which they are the last, the first
    ones of the context in both directions.
    """

    start: int
    num_tokens: int
    context_len: int
    block_table: list[int]
    bidirectional_prefix: BidirectionalPrefix = CAUSAL


@dataclass(frozen=True)
class Batch:
    """`ids`, `positions` and `slot_mapping` of all tokens, and `logit_rows`.

    Slot s is place `s % block_size` of block `s // block_size`. `logit_rows` are the packed
    tokens whose logits are wanted, `wanted` the rows they belong to.
    """

    ids: list[int]
    positions: list[int]
    slot_mapping: list[int]
    logit_rows: list[int]
    spans: list[Span]
    wanted: list[Row]

    def places(self) -> list[tuple[int, int]]:
        """Both positions of every token, for models that have two."""
        return [
            span.bidirectional_prefix.positions(position)
            for span in self.spans
            for position in self.positions[span.start : span.start + span.num_tokens]
        ]

    @classmethod
    def pack(cls, rows: Seq[Row], block_size: int) -> Self:
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        spans: list[Span] = []
        for row in rows:
            sequence = row.sequence
            first, end = sequence.num_computed, sequence.num_computed + row.num_tokens
            table = sequence.block_table
            spans.append(Span(len(ids), row.num_tokens, end, table, sequence.bidirectional_prefix))
            ids += sequence.tokens[first:end]
            positions += range(first, end)
            slots += (
                table[p // block_size] * block_size + p % block_size for p in range(first, end)
            )
        ends = [(s.start + s.num_tokens - 1, row) for s, row in zip(spans, rows, strict=True)]
        wanted = [(last, row) for last, row in ends if row.reaches_end]
        return cls(
            ids, positions, slots, [last for last, _ in wanted], spans, [row for _, row in wanted]
        )


def padded_rows(num_rows: int) -> int:
    """Round up to a multiple of 4, so that each field of 4-byte elements starts at 16 bytes."""
    return -(-num_rows // 4) * 4
