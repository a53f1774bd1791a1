"""The decode batch: the state of running decode steps on the GPU, one row for each sequence."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.gpu.inputs.fixed_batch import FixedBatch
from swiftchat.engine.model.state_cache import LayerStates
from swiftchat.engine.schedule.batch import padded_rows
from swiftchat.engine.schedule.sequence import Row, TokenSequence

# More than the number of steps that the device can be ahead of the host.
_RING_STEPS = 8
_INT_FIELDS = ("top_k", "has_bias", "min_context_lens", "has_mask", "adapter_sets")
_FLOAT_FIELDS = (
    "temperature",
    "top_p",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_PENALTIES_OFF = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_NO_STATES: Mapping[int, LayerStates] = MappingProxyType({})
# Bits in the count of an id: it occurs, or it ends an answer. See `kernels/sampling/penalties.cu`.
_SEEN, _ENDS = 1 << 30, 1 << 29


class DecodeBatch(FixedBatch):
    """Inputs of a decode step, and what it samples with; the step updates them for the next one.

    Each token is a row. On the device, int32 or fp32 [max_rows]: the sampling parameters; int64
    `seeds`; int32 `counts` [max_rows, vocab_size]; fp32 `bias` [max_rows, vocab_size], for rows
    with `has_bias`; int32 `masks` [max_rows, ceil(vocab_size / 32)] of the ids that grammars allow,
    for rows with `has_mask`. `adapter_sets` int32 [max_rows] are the numbers of the rows' sets of
    adapters, -1 for none. `state_slots` are the slots of states that steps with an even number
    read, and write, and the others the other way round; -1 for an unused row. A row of a proposed
    token reads what the row before it writes.
    `ring` [steps, max_rows] is pinned host memory that receives each step's tokens.
    """

    def __init__(
        self,
        gpu: Gpu,
        max_rows: int,
        max_blocks: int,
        block_size: int,
        vocab_size: int,
        states: Mapping[int, LayerStates] = _NO_STATES,
    ) -> None:
        max_rows, device = padded_rows(max_rows), gpu.device
        fields = dict.fromkeys((*_INT_FIELDS, *_FLOAT_FIELDS), max_rows)
        others = {"seeds": 2 * max_rows, **fields}
        sizes = max_rows, max_rows, max_blocks, block_size
        super().__init__(device, *sizes, states, others)
        self.top_k, self.has_bias, self.min_context_lens, self.has_mask, self.adapter_sets = (
            self.part(name) for name in _INT_FIELDS
        )
        (
            self.temperature,
            self.top_p,
            self.min_p,
            self.repeat_penalty,
            self.presence_penalty,
            self.frequency_penalty,
        ) = (self.part(name).view(torch.float32) for name in _FLOAT_FIELDS)
        self.seeds = self.part("seeds").view(torch.int64)
        self._host_seeds = self.host["seeds"].view(np.int64)
        self._host_floats = {name: self.host[name].view(np.float32) for name in _FLOAT_FIELDS}
        self.counts = torch.zeros(max_rows, vocab_size, dtype=torch.int32, device=device)
        self.bias = torch.zeros(max_rows, vocab_size, device=device)
        words = -(-vocab_size // 32)
        self.masks = torch.zeros(max_rows, words, dtype=torch.int32, device=device)
        self._host_masks = self.masks.cpu().pin_memory()
        self.ring = torch.zeros(_RING_STEPS, max_rows, dtype=torch.int32).pin_memory()
        self.num_steps = 0  # the value of `step` after all launched steps
        self._num_blocks = [0] * max_rows  # blocks of each row that are on the device
        self.adapter_sets.fill_(-1)

    def load(self, sequences: Sequence[TokenSequence], seeds: Sequence[int]) -> None:
        """Assign a row to each sequence; all its tokens but the last must be computed.

        The device must be idle, because this overwrites the host buffers of earlier copies.
        """
        self.load_rows([Row(sequence, 1) for sequence in sequences], seeds)

    def load_rows(self, rows: Sequence[Row], seeds: Sequence[int]) -> None:
        """As `load`, and assign the following rows to a sequence's proposed tokens.

        A sequence with proposed tokens must not have penalties or a number of `min_tokens`.
        """
        self.clear()
        self.host["adapter_sets"].fill(-1)
        n = 0
        for row, seed in zip(rows, seeds, strict=True):
            end = n + self._load_sequence(n, row)
            self._host_seeds[n:end] = seed - 2**64 if seed >= 2**63 else seed
            n = end
        self.copy(n)

    @contextmanager
    def unused(self) -> Iterator[None]:
        """Let all rows be unused; at the end restore them and undo what steps did meanwhile.

        Their blocks may belong to other sequences by now.
        """
        state = [self.ids, self.positions, self.context_lens, self.slot_mapping]
        state += [self.state_slots, self.step, self.counts]
        saved = [tensor.clone() for tensor in state]
        self.context_lens.zero_()
        self.slot_mapping.fill_(-1)
        self.state_slots.fill_(-1)
        try:
            yield
        finally:
            for tensor, before in zip(state, saved, strict=True):
                tensor.copy_(before)

    def _load_sequence(self, first: int, row: Row) -> int:
        """Assign rows from `first` on to a sequence's last token and the proposed ones.

        Returns their number.
        """
        sequence, params, host = row.sequence, row.sequence.params, self.host
        ids, table = (sequence.tokens[-1], *row.proposed), sequence.block_table
        count = len(ids)
        self.put_tokens(first, ids, table, sequence.num_computed)
        bias = device_bias(params)
        shortest = sequence.num_prompt + params.min_tokens if params.min_tokens else 0
        settings = {
            "top_k": min(params.top_k, self.counts.shape[1]),
            "has_bias": int(bool(bias)),
            "min_context_lens": shortest,
            "has_mask": int(sequence.constraint is not None),
        }
        # An element or a slice, because assigning lists takes longer.
        rows = first if count == 1 else slice(first, first + count)
        for name, value in settings.items():
            if value:  # the others are 0 already
                host[name][rows] = value
        if sequence.tuning is not None:
            host["adapter_sets"][rows] = sequence.tuning.set_index
        self._load_state_slots(first, sequence, count)
        off = {} if params.has_penalties else _PENALTIES_OFF
        for name, values in self._host_floats.items():
            values[rows] = off.get(name, getattr(params, name))
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
        even, odd = self.host["state_slots"].reshape(2, -1)
        reads, writes = (odd, even) if self.num_steps % 2 else (even, odd)
        for i, pair in enumerate(pairwise((sequence.state_slot, *after[:count])), first):
            reads[i], writes[i] = pair

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
            self.host_block_tables[row, first : len(table)] = table[first:]
            self._num_blocks[row] = len(table)
        self.copy_block_tables(slice(changed[0], changed[-1] + 1))

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
