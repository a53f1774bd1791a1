"""The decode batch: the state of running decode steps on the GPU, one row for each sequence."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.schedule.batch import padded_rows
from swiftchat.engine.schedule.sequence import Row, TokenSequence

# More than the number of steps that the device can be ahead of the host.
_RING_STEPS = 8
_INT_FIELDS = (
    "tokens",
    "positions",
    "context_lens",
    "slot_mapping",
    "top_k",
    "has_bias",
    "min_context_lens",
    "has_mask",
    "adapter_sets",
    "state_slots_even",
    "state_slots_odd",
)
_FLOAT_FIELDS = (
    "temperature",
    "top_p",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_MISSING = ("slot_mapping", "adapter_sets", "state_slots_even", "state_slots_odd")  # -1 for none
_PENALTIES_OFF = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
# Bits in the count of an id: it occurs, or it ends an answer. See `kernels/sampling/penalties.cu`.
_SEEN, _ENDS = 1 << 30, 1 << 29


class DecodeBatch:
    """Inputs of a decode step; the step itself updates them for the next one.

    On the device, int32 or fp32 [max_rows]: `tokens` to compute, their `positions`,
    `context_lens` (0 for an unused row), `slot_mapping`, and the sampling parameters; int64
    `seeds`; int32 `block_tables` [max_rows, max_blocks] and `counts` [max_rows, vocab_size]; fp32
    `bias` [max_rows, vocab_size], for rows with `has_bias`; int32 `masks`
    [max_rows, ceil(vocab_size / 32)] of the ids that grammars allow, for rows with `has_mask`.
    `adapter_sets` int32 [max_rows] are the numbers of the rows' sets of adapters, -1 for none.
    `state_slots` int32 [2, max_rows] are the slots of states that steps with an even number read,
    and write, and the others the other way round; -1 for an unused row. A row of a proposed token
    reads what the row before it writes.
    `ring` [steps, max_rows] is pinned host memory that receives each step's tokens.
    """

    def __init__(
        self, gpu: Gpu, max_rows: int, max_blocks: int, block_size: int, vocab_size: int
    ) -> None:
        self.max_rows = max_rows = padded_rows(max_rows)
        self.block_size = block_size
        names = [*_INT_FIELDS, *_FLOAT_FIELDS]
        max_blocks = -(-max_blocks // 4) * 4  # rows of 16 bytes
        # One tensor that one copy from pinned memory fills: seeds, fields, block tables. The rows
        # of tables that are not used are left out, so they come last.
        self._num_fields = (2 + len(names)) * max_rows
        size = self._num_fields + max_rows * max_blocks
        self._inputs = torch.zeros(size, dtype=torch.int32, device=gpu.device)
        self._host_inputs = self._inputs.cpu().pin_memory()
        fields = self._inputs[2 * max_rows : self._num_fields].view(len(names), max_rows)
        # Views: assigning an element takes a tenth of the time of torch's.
        host = self._host_inputs.numpy()
        self._host_seeds = host[: 2 * max_rows].view(np.int64)
        self._host_ints = host[2 * max_rows : self._num_fields].reshape(len(names), max_rows)
        self._host_floats = self._host_ints.view(np.float32)
        self._index = {name: i for i, name in enumerate(names)}
        ints = (fields[self._index[name]] for name in _INT_FIELDS)
        (
            self.tokens,
            self.positions,
            self.context_lens,
            self.slot_mapping,
            self.top_k,
            self.has_bias,
            self.min_context_lens,
            self.has_mask,
            self.adapter_sets,
            _,
            _,
        ) = ints
        first = self._index["state_slots_even"]
        self.state_slots = fields[first : first + 2]
        floats = (fields[self._index[name]].view(torch.float32) for name in _FLOAT_FIELDS)
        (
            self.temperature,
            self.top_p,
            self.min_p,
            self.repeat_penalty,
            self.presence_penalty,
            self.frequency_penalty,
        ) = floats
        self.seeds = self._inputs[: 2 * max_rows].view(torch.int64)
        self.block_tables = self._inputs[self._num_fields :].view(max_rows, max_blocks)
        self._host_tables = self._host_inputs[self._num_fields :].view(max_rows, max_blocks)
        self._host_block_tables = self._host_tables.numpy()  # a view
        self.counts = torch.zeros(max_rows, vocab_size, dtype=torch.int32, device=gpu.device)
        self.bias = torch.zeros(max_rows, vocab_size, device=gpu.device)
        words = -(-vocab_size // 32)
        self.masks = torch.zeros(max_rows, words, dtype=torch.int32, device=gpu.device)
        self._host_masks = self.masks.cpu().pin_memory()
        self.ring = torch.zeros(_RING_STEPS, max_rows, dtype=torch.int32).pin_memory()
        self.step = torch.zeros(1, dtype=torch.int64, device=gpu.device)
        self.num_steps = 0  # the value of `step` after all launched steps
        self._num_blocks = [0] * max_rows  # blocks of each row that are on the device
        for name in _MISSING:
            fields[self._index[name]].fill_(-1)

    def load(self, sequences: Sequence[TokenSequence], seeds: Sequence[int]) -> None:
        """Assign a row to each sequence; all its tokens but the last must be computed.

        The device must be idle, because this overwrites the host buffers of earlier copies.
        """
        self.load_rows([Row(sequence, 1) for sequence in sequences], seeds)

    def load_rows(self, rows: Sequence[Row], seeds: Sequence[int]) -> None:
        """As `load`, and assign the following rows to a sequence's proposed tokens.

        A sequence with proposed tokens must not have penalties or a number of `min_tokens`.
        """
        self._host_ints.fill(0)
        for name in _MISSING:
            self._host_ints[self._index[name]] = -1
        n = 0
        for row, seed in zip(rows, seeds, strict=True):
            end = n + self._load_sequence(n, row)
            self._host_seeds[n:end] = seed - 2**64 if seed >= 2**63 else seed
            n = end
        # Whole rows of the block tables, with old entries at their ends.
        used = slice(0, self._num_fields + n * self.block_tables.shape[1])
        self._inputs[used].copy_(self._host_inputs[used], non_blocking=True)

    def _load_sequence(self, first: int, row: Row) -> int:
        """Assign rows from `first` on to a sequence's last token and the proposed ones.

        Returns their number.
        """
        sequence, params = row.sequence, row.sequence.params
        count = 1 + len(row.proposed)
        positions = range(sequence.num_computed, sequence.num_computed + count)
        bias = device_bias(params)
        shortest = sequence.num_prompt + params.min_tokens if params.min_tokens else 0
        size, table = self.block_size, sequence.block_table
        settings = {
            "top_k": min(params.top_k, self.counts.shape[1]),
            "has_bias": int(bool(bias)),
            "min_context_lens": shortest,
            "has_mask": int(sequence.constraint is not None),
        }
        ints, index = self._host_ints, self._index
        # Elements one by one and slices, because assigning lists takes longer.
        for i, (token, at) in enumerate(
            zip((sequence.tokens[-1], *row.proposed), positions, strict=True), first
        ):
            ints[index["tokens"], i], ints[index["positions"], i] = token, at
            ints[index["context_lens"], i] = at + 1
            ints[index["slot_mapping"], i] = table[at // size] * size + at % size
        rows = first if count == 1 else slice(first, first + count)
        for name, value in settings.items():
            if value:  # the others are 0 already
                ints[index[name], rows] = value
        if sequence.tuning is not None:
            ints[index["adapter_sets"], rows] = sequence.tuning.set_index
        self._load_state_slots(first, sequence, count)
        off = {} if params.has_penalties else _PENALTIES_OFF
        for name in _FLOAT_FIELDS:
            self._host_floats[index[name], rows] = off.get(name, getattr(params, name))
        self._host_block_tables[rows, : len(table)] = table
        for number in range(first, first + count):
            self._num_blocks[number] = len(table)
            if params.has_penalties or shortest:
                self._load_counts(number, sequence)
            if bias:
                self._load_bias(number, bias)
        return count

    def _load_state_slots(self, first: int, sequence: TokenSequence, count: int) -> None:
        """Assign the slots of states before and after each of the rows from `first` on."""
        if sequence.state_slot < 0:  # a model without states
            return
        after = sequence.verified_slots or [sequence.next_state_slot]
        even, odd = self._index["state_slots_even"], self._index["state_slots_odd"]
        reads, writes = (odd, even) if self.num_steps % 2 else (even, odd)
        for i, pair in enumerate(pairwise((sequence.state_slot, *after[:count])), first):
            self._host_ints[reads, i], self._host_ints[writes, i] = pair

    def load_masks(self, sequences: Sequence[TokenSequence]) -> None:
        """Copy what the grammars of the rows allow next to the device, without waiting for it.

        All steps sampled with earlier masks must have ended.
        """
        for row, sequence in enumerate(sequences):
            if sequence.constraint is not None:
                self._host_masks[row] = sequence.constraint.mask
        n = len(sequences)
        self.masks[:n].copy_(self._host_masks[:n], non_blocking=True)

    def update_block_tables(self, sequences: Sequence[TokenSequence]) -> None:
        """Copy the blocks that the rows' sequences got since the last call to the device.

        In one copy of whole rows. An earlier one may be in progress: it copies the new blocks or
        not, which its steps do not read.
        """
        changed = [
            row for row, s in enumerate(sequences) if self._num_blocks[row] < len(s.block_table)
        ]
        if not changed:
            return
        for row in changed:
            first, table = self._num_blocks[row], sequences[row].block_table
            self._host_block_tables[row, first : len(table)] = table[first:]
            self._num_blocks[row] = len(table)
        rows = slice(changed[0], changed[-1] + 1)
        self.block_tables[rows].copy_(self._host_tables[rows], non_blocking=True)

    def _load_counts(self, row: int, sequence: TokenSequence) -> None:
        counts = torch.zeros(self.counts.shape[1], dtype=torch.int32)
        counts[list(set(sequence.tokens))] = _SEEN
        generated = Counter(sequence.tokens[sequence.num_prompt :])
        if generated:
            counts[list(generated)] += torch.tensor(list(generated.values()), dtype=torch.int32)
        ends = [token for token in sequence.params.stop_ids if token < len(counts)]
        counts[ends] += _ENDS
        self.counts[row].copy_(counts)

    def _load_bias(self, row: int, bias: dict[int, float]) -> None:
        values = torch.zeros(self.bias.shape[1])
        values[list(bias)] = torch.tensor(list(bias.values()))
        self.bias[row].copy_(values)


def device_bias(params: SamplingParams) -> dict[int, float]:
    """Return what is added to logits by id: `logit_bias`, and −inf for bad words of one id."""
    banned = (word[0] for word in params.bad_words if len(word) == 1)
    return {**dict(params.logit_bias), **dict.fromkeys(banned, -math.inf)}
