"""The tokens of a step on a GPU, as its kernels read them."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import Self

import torch
from torch import Tensor

from swiftchat.cuda.ops.mixers.scans import ScanRows
from swiftchat.cuda.ops.mixers.steps import StepSlots
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.state_cache import LayerStates, StateRows, plan_states
from swiftchat.engine.reference.ops import TorchPlan
from swiftchat.engine.schedule.batch import Batch, Span


@dataclass(frozen=True)
class Rows:
    """Sequences of a batch: int32 `block_tables` [n, max_blocks] and `context_lens` [n].

    The context of an unused row has 0 tokens. Of the tokens of all rows, sequence i has those in
    `query_starts[i] : query_starts[i + 1]`, at most `max_num_tokens`; None: each has one.
    """

    block_tables: Tensor
    context_lens: Tensor
    query_starts: Tensor | None = None
    max_num_tokens: int = 1


@dataclass(frozen=True)
class DeviceBatch:
    """A batch on the device; all int32.

    `ids`, `positions` and `slot_mapping` have an element for each token; a token with a slot below
    0 is not stored. The tokens of the `decode` rows come first, then those of the `prefill` rows.
    `logits_indices` None means all tokens.

    `states` are those of a model with mixers, by layer. The first tokens are `steps` of them, the
    others are in `scans`, or in `scanned` if torch's operators compute them. Latent attention has
    `latents` if torch computes it, else every token is a `decode` row.
    """

    ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    decode: Rows | None = None
    prefill: Rows | None = None
    logits_indices: Tensor | None = None
    states: Mapping[int, LayerStates] = field(default_factory=dict)
    steps: StepSlots | None = None
    scans: ScanRows | None = None
    scanned: Sequence[StateRows] = ()
    latents: TorchPlan | None = None

    @property
    def num_decode(self) -> int:
        return 0 if self.decode is None else len(self.decode.context_lens)

    @property
    def logits_slots(self) -> Tensor:
        """The slots of the tokens whose logits are computed."""
        indices = self.logits_indices
        return self.slot_mapping if indices is None else self.slot_mapping[indices]

    def previous_slots(self, block_size: int) -> Tensor:
        """Return the slot of the token before each one, int64 [n]; -1 for first ones and padding.

        Launches kernels, so a captured step must call it itself.
        """
        before, split, parts = self.positions.long() - 1, self.num_decode, list[Tensor]()
        if self.decode is not None:
            parts.append(_slots_of(self.decode.block_tables, before[:split], block_size))
        if self.prefill is not None and self.prefill.query_starts is not None:
            # Padding behind the last row is at position 0.
            ends, n = self.prefill.query_starts[1:], len(before) - split
            row = torch.arange(n, device=before.device, dtype=ends.dtype)
            row = torch.searchsorted(ends, row, right=True).clamp_(max=len(ends) - 1)
            parts.append(_slots_of(self.prefill.block_tables[row], before[split:], block_size))
        return torch.cat(parts)

    @classmethod
    def pack(
        cls,
        batch: Batch,
        cache: KVCache,
        device: torch.device,
        *,
        has_scans: bool,
        latents: TorchPlan | None,
    ) -> Self:
        """Upload a batch in one copy, and another one for the states of its rows.

        The scheduler puts rows of one token first; one after a longer row is computed as prefill.
        With `has_scans` kernels compute the states of prompts.
        """
        spans, size, states = batch.spans, cache.block_size, cache.states.layers
        num_decode = sum(1 for _ in takewhile(lambda span: span.num_tokens == 1, spans))
        rows, rest = spans[:num_decode], spans[num_decode:]
        ids, positions, slot_mapping, tables, lens, rest_tables, rest_lens, starts, indices = (
            _uploaded(
                device,
                batch.ids,
                batch.positions,
                batch.slot_mapping,
                _block_tables(rows, size),
                [span.context_len for span in rows],
                _block_tables(rest, size),
                [span.context_len for span in rest],
                _starts(rest, 0),
                batch.logits_indices,
            )
        )
        decode = Rows(tables.view(len(rows), -1), lens) if rows else None
        prefill: Rows | None = None
        if rest:
            longest = max(span.num_tokens for span in rest)
            prefill = Rows(rest_tables.view(len(rest), -1), rest_lens, starts, longest)
        steps, scanned = _divided(spans) if states else ([], [])
        has_all_logits = len(batch.logits_indices) == len(batch.ids)
        return cls(
            ids,
            positions,
            slot_mapping,
            decode,
            prefill,
            None if has_all_logits else indices,
            states,
            _step_slots(steps, positions, device) if steps else None,
            _scan_rows(scanned, positions, device) if scanned and has_scans else None,
            plan_states(scanned, device) if scanned and not has_scans else (),
            latents,
        )


def _slots_of(tables: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Return the slots int64 [n] of positions in the blocks of tables [n, max_blocks].

    -1 for positions below 0.
    """
    known = positions.clamp(min=0)
    blocks = tables.gather(1, (known // block_size).unsqueeze(1)).squeeze(1).long()
    return (blocks * block_size + known % block_size).masked_fill_(positions < 0, -1)


def _uploaded(device: torch.device, *parts: Sequence[int]) -> list[Tensor]:
    """Return the parts on the device, of one copy; each begins at a multiple of 16 bytes."""
    # Arrays take lists of thousands of integers in a fifth of the time of `torch.tensor`.
    padded = [array("i", [*part, *([0] * (-len(part) % 4))]) for part in parts]
    packed = torch.frombuffer(bytearray().join(padded), dtype=torch.int32).to(device)
    on_device = torch.split(packed, [len(part) for part in padded])
    return [tensor[: len(part)] for tensor, part in zip(on_device, parts, strict=True)]


def _block_tables(spans: Sequence[Span], block_size: int) -> list[int]:
    """Return the used blocks of each sequence, padded to the same number."""
    used = [span.block_table[: -(-span.context_len // block_size)] for span in spans]
    width = max(map(len, used), default=0)
    return [block for table in used for block in table + [0] * (width - len(table))]


def _starts(spans: Sequence[Span], first: int) -> list[int]:
    return list(accumulate((span.num_tokens for span in spans), initial=first))


def _divided(spans: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    """Return the first rows, whose tokens are single steps of the states, and the other ones.

    Steps have one token each, or tokens whose states are all kept.
    """
    steps = list(takewhile(lambda span: span.num_tokens == 1 or span.after_slots, spans))
    scanned = list(spans[len(steps) :])
    assert not any(span.after_slots for span in scanned)  # the scheduler puts decode rows first
    return steps, scanned


def _step_slots(spans: Sequence[Span], positions: Tensor, device: torch.device) -> StepSlots:
    pairs = [pair for span in spans for pair in span.step_slots]
    is_chained = len(pairs) > len(spans)
    return StepSlots(_slots(pairs, device), positions[: len(pairs)], chained=is_chained)


def _scan_rows(spans: Sequence[Span], positions: Tensor, device: torch.device) -> ScanRows:
    starts = torch.tensor(_starts(spans, spans[0].start), dtype=torch.int32).to(device)
    slots = _slots([(span.state_slot, span.next_state_slot) for span in spans], device)
    return ScanRows(starts, slots, positions, max(span.num_tokens for span in spans))


def _slots(pairs: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    """Return the slots before and after each row, [2, rows]."""
    return torch.tensor(pairs, dtype=torch.int32).t().contiguous().to(device)
