"""The state of a running decode step on the GPU: a lane for each sequence."""

from collections import Counter
from collections.abc import Sequence as Seq

import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.schedule.batch import padded_rows
from swiftchat.engine.schedule.scheduler import Sequence

# Steps of which the host may be behind, and some more.
_RING_ROWS = 8
_INTS = ("tokens", "positions", "context_lens", "slots", "top_k")
_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
)


class DecodeBatch:
    """What a step reads and leaves for the next, without the host in between.

    All int32 or fp32 [max_lanes] on the device: `tokens` to compute, their `positions`,
    `context_lens` (0: nobody uses the lane) and `slots`, and the sampling parameters; int64
    `seeds`; int32 `block_tables` [max_lanes, max_blocks] and `counts` [max_lanes, vocab_size].
    `ring` [rows, max_lanes] is pinned host memory that receives each step's tokens.
    """

    def __init__(
        self, gpu: Gpu, max_lanes: int, max_blocks: int, block_size: int, vocab_size: int
    ) -> None:
        self.max_lanes = padded_rows(max_lanes)
        self.block_size = block_size
        names = [*_INTS, *_FLOATS]
        self._words = torch.zeros(len(names), self.max_lanes, dtype=torch.int32, device=gpu.device)
        self._host_words = self._words.cpu().pin_memory()
        self._rows = {name: row for row, name in enumerate(names)}
        ints = (self._words[self._rows[name]] for name in _INTS)
        self.tokens, self.positions, self.context_lens, self.slots, self.top_k = ints
        floats = (self._words[self._rows[name]].view(torch.float32) for name in _FLOATS)
        (
            self.temperature,
            self.top_p,
            self.min_p,
            self.repeat_penalty,
            self.presence_penalty,
            self.frequency_penalty,
        ) = floats
        self.seeds = torch.zeros(self.max_lanes, dtype=torch.int64, device=gpu.device)
        max_blocks = -(-max_blocks // 4) * 4
        self.block_tables = torch.zeros(
            self.max_lanes, max_blocks, dtype=torch.int32, device=gpu.device
        )
        self._host_tables = self.block_tables.cpu().pin_memory()
        self.counts = torch.zeros(self.max_lanes, vocab_size, dtype=torch.int32, device=gpu.device)
        self.ring = torch.zeros(_RING_ROWS, self.max_lanes, dtype=torch.int32).pin_memory()
        self.step = torch.zeros(1, dtype=torch.int64, device=gpu.device)
        self.num_steps = 0  # what `step` will be when all that was launched is done
        self._num_blocks = [0] * self.max_lanes  # of each table, that the device knows
        self.reset()

    def reset(self) -> None:
        """Nobody uses any lane, and no step was made; the device must be idle."""
        self._words.zero_()
        self.slots.fill_(-1)
        self.step.zero_()
        self.num_steps = 0

    def load(self, sequences: Seq[Sequence], seeds: Seq[int]) -> None:
        """Give each sequence a lane. All its tokens but the last are computed.

        The device must be idle: what earlier copies read from is written again.
        """
        host = self._host_words
        floats = host.view(torch.float32)
        host.zero_()
        host[self._rows["slots"]] = -1
        for lane, sequence in enumerate(sequences):
            position = sequence.num_computed
            block = sequence.block_table[position // self.block_size]
            values = {
                "tokens": sequence.tokens[-1],
                "positions": position,
                "context_lens": position + 1,
                "slots": block * self.block_size + position % self.block_size,
                "top_k": min(sequence.params.top_k, self.counts.shape[1]),
            }
            for name, value in values.items():
                host[self._rows[name], lane] = value
            for name in _FLOATS:
                floats[self._rows[name], lane] = getattr(sequence.params, name)
            self._num_blocks[lane] = 0
            self.extend(lane, sequence)
            if _is_penalized(sequence):
                self._count(lane, sequence)
        self._words.copy_(host, non_blocking=True)
        signed = [seed - 2**64 if seed >= 2**63 else seed for seed in seeds]
        # From ordinary memory, which waits for all copies above.
        self.seeds[: len(signed)] = torch.tensor(
            signed, dtype=torch.int64, device=self.seeds.device
        )

    def extend(self, lane: int, sequence: Sequence) -> None:
        """Tell the device the blocks that the sequence was given since the last call."""
        known, table = self._num_blocks[lane], sequence.block_table
        if known < len(table):
            new = torch.tensor(table[known:], dtype=torch.int32)
            host = self._host_tables[lane, known : len(table)]
            host.copy_(new)
            self.block_tables[lane, known : len(table)].copy_(host, non_blocking=True)
            self._num_blocks[lane] = len(table)

    def _count(self, lane: int, sequence: Sequence) -> None:
        counts = torch.zeros(self.counts.shape[1], dtype=torch.int32)
        counts[list(set(sequence.tokens))] = 1 << 30
        generated = Counter(sequence.tokens[sequence.num_prompt :])
        if generated:
            counts[list(generated)] += torch.tensor(list(generated.values()), dtype=torch.int32)
        self.counts[lane].copy_(counts)


def _is_penalized(sequence: Sequence) -> bool:
    params = sequence.params
    return params.repeat_penalty != 1 or bool(params.presence_penalty or params.frequency_penalty)
