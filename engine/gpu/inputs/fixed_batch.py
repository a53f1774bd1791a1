"""A batch at addresses that never change, as CUDA graphs need them."""

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from swiftchat.cuda.ops.mixers.scans import ScanRows
from swiftchat.cuda.ops.mixers.steps import StepSlots
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch, Rows
from swiftchat.engine.model.state_cache import LayerStates
from swiftchat.engine.schedule.batch import Batch

_ALIGNED = 4  # int32 elements: kernels read their inputs from multiples of 16 bytes


class FixedBatch:
    """The inputs of captured steps on the device, and a copy of them in pinned memory.

    All are parts of one int32 tensor, which one copy fills: `ids`, `positions` and `slot_mapping`
    [max_tokens], `context_lens` [max_rows], `query_starts` [max_rows + 1], `logits_indices`
    [max_rows], `state_slots` [2, max_rows], `block_tables` [max_rows, max_blocks], and `others`
    with names and sizes of their own. `step` int64 [1] counts decode steps.

    A step reads them through `decode_rows`, where each token is a row of its own, or through
    `chunk`, the tokens of one sequence. Both return views, but `chunk` may launch kernels for them,
    so a captured step must call it itself.
    """

    def __init__(
        self,
        device: torch.device,
        max_tokens: int,
        max_rows: int,
        max_blocks: int,
        block_size: int,
        states: Mapping[int, LayerStates],
        others: Mapping[str, int] | None = None,
    ) -> None:
        """Allocate all parts. `states` are those of the layers of a model with mixers."""
        self.max_rows, self.block_size, self._states = max_rows, block_size, states
        max_blocks = _aligned(max_blocks)
        lengths = {
            **(others or {}),
            **dict.fromkeys(("ids", "positions", "slot_mapping"), max_tokens),
            **dict.fromkeys(("context_lens", "logits_indices"), max_rows),
            "query_starts": max_rows + 1,
            "state_slots": 2 * max_rows,
            # The rows of tables that are not used are not copied, so they come last.
            "block_tables": max_rows * max_blocks,
        }
        size = sum(map(_aligned, lengths.values()))
        self._on_device = torch.zeros(size, dtype=torch.int32, device=device)
        self._on_host = self._on_device.cpu().pin_memory()
        self._parts = _parts(self._on_device, lengths)
        host_parts = _parts(self._on_host, lengths)
        # Views: assigning an element takes a tenth of the time of torch's.
        self.host = {name: part.numpy() for name, part in host_parts.items()}
        self._num_fields = size - _aligned(lengths["block_tables"])
        self._host_fields = self._on_host.numpy()[: self._num_fields]
        self._host_tables = host_parts["block_tables"].view(max_rows, max_blocks)
        self.host_block_tables = self._host_tables.numpy()
        self.ids, self.positions = self.part("ids"), self.part("positions")
        self.slot_mapping, self.context_lens = self.part("slot_mapping"), self.part("context_lens")
        self.query_starts = self.part("query_starts")
        self.logits_indices = self.part("logits_indices")
        self.state_slots = self.part("state_slots").view(2, max_rows)
        self.block_tables = self.part("block_tables").view(max_rows, max_blocks)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.slot_mapping.fill_(-1)
        self.state_slots.fill_(-1)

    def part(self, name: str) -> Tensor:
        """Return a part on the device, flat."""
        return self._parts[name]

    def clear(self) -> None:
        """Let all rows be unused, on the host."""
        self._host_fields.fill(0)
        self.host["slot_mapping"].fill(-1)
        self.host["state_slots"].fill(-1)

    def put_tokens(
        self,
        first: int,
        ids: Sequence[int],
        table: Sequence[int],
        position: int,
    ) -> None:
        """Assign rows from `first` on to tokens of one sequence, on the host.

        They are those from `position` on of the tokens in the blocks of the table.
        """
        host, size = self.host, self.block_size
        # Elements one by one, because assigning lists takes longer.
        for offset, token in enumerate(ids):
            row, at = first + offset, position + offset
            host["ids"][row], host["positions"][row] = token, at
            host["context_lens"][row] = at + 1
            host["slot_mapping"][row] = table[at // size] * size + at % size
        self.host_block_tables[first : first + len(ids), : len(table)] = table

    def put_chunk(self, batch: Batch | None, num_tokens: int) -> None:
        """Assign a batch of one sequence, padded to `num_tokens`, on the host; None: all padding.

        Padding tokens have no slot and are no queries, and states do not advance with them.
        """
        host, length = self.host, len(batch.ids) if batch else 0
        for name, padding in (("ids", 0), ("positions", 0), ("slot_mapping", -1)):
            host[name][length:num_tokens] = padding
        host["query_starts"][1] = length
        host["context_lens"][0] = host["logits_indices"][0] = 0
        if batch is None:
            return
        (span,) = batch.spans
        used = span.block_table[: -(-span.context_len // self.block_size)]
        host["context_lens"][0], host["logits_indices"][0] = span.context_len, length - 1
        host["state_slots"][:2] = span.state_slot, span.next_state_slot
        for name, values in (
            ("ids", batch.ids),
            ("positions", batch.positions),
            ("slot_mapping", batch.slot_mapping),
            ("block_tables", used),
        ):
            host[name][: len(values)] = np.frombuffer(array("i", values), dtype=np.int32)

    def copy(self, num_rows: int) -> None:
        """Copy everything to the device, with the block tables of the first rows.

        Old entries are at the ends of the tables. Does not wait: the host's memory must not change
        before the device has read it.
        """
        used = slice(0, self._num_fields + num_rows * self.block_tables.shape[1])
        self._on_device[used].copy_(self._on_host[used], non_blocking=True)

    def copy_block_tables(self, rows: slice) -> None:
        """Copy the block tables of some rows to the device, without waiting for it."""
        self.block_tables[rows].copy_(self._host_tables[rows], non_blocking=True)

    def decode_rows(self, rows: slice, *, shares_states: bool = False) -> DeviceBatch:
        """Return the batch of some rows, whose tokens are decode steps.

        With `shares_states` a row may read the states that the row before it writes.
        """
        positions = self.positions[rows]
        steps: StepSlots | None = None
        if self._states:
            steps = StepSlots(
                self.state_slots, positions, self.step, early_reads=True, chained=shares_states
            )
        return DeviceBatch(
            self.ids[rows],
            positions,
            self.slot_mapping[rows],
            Rows(self.block_tables[rows], self.context_lens[rows]),
            states=self._states,
            steps=steps,
        )

    def chunk(self, num_tokens: int, max_context: int, *, one_by_one: bool) -> DeviceBatch:
        """Return the batch of the only row, whose context has at most `max_context` tokens.

        `one_by_one` makes a decode row of each token.
        """
        ids, positions, slot_mapping = (
            part[:num_tokens] for part in (self.ids, self.positions, self.slot_mapping)
        )
        query_starts, max_blocks = self.query_starts[:2], -(-max_context // self.block_size)
        table = self.block_tables[:1, :max_blocks]
        decode, prefill, scans = None, None, None
        if one_by_one:
            context_lens = torch.where(slot_mapping >= 0, positions + 1, 0)
            decode = Rows(table.expand(num_tokens, -1).contiguous(), context_lens)
        else:
            prefill = Rows(table, self.context_lens[:1], query_starts, num_tokens)
        if self._states:
            scans = ScanRows(query_starts, self.state_slots, positions, num_tokens)
        return DeviceBatch(
            *(ids, positions, slot_mapping, decode, prefill, self.logits_indices[:1]),
            states=self._states,
            scans=scans,
        )


def _parts(packed: Tensor, lengths: Mapping[str, int]) -> dict[str, Tensor]:
    """Divide a tensor into parts of these lengths, each of which begins aligned."""
    aligned = torch.split(packed, [_aligned(length) for length in lengths.values()])
    return {
        name: part[:length] for (name, length), part in zip(lengths.items(), aligned, strict=True)
    }


def _aligned(length: int) -> int:
    return -(-length // _ALIGNED) * _ALIGNED
