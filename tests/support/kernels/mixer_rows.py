"""Prompts of sequences with states, for the kernels that scan their tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from swiftchat.cuda.ops.mixers.scans import ScanRows
from tests.support.kernels.case import Inputs

NUM_BEFORE = 3  # tokens of the batch before the first row


@dataclass(frozen=True)
class Prompts:
    """Rows of a batch: their numbers of tokens, and the slots of their states.

    The second row begins its sequence. The first row is written to the slot that it is read from.
    A row without tokens is written nowhere.
    """

    rows: ScanRows
    lengths: Sequence[int]
    before: list[int]
    after: list[int]

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the batch; the first and the last are of no row."""
        return NUM_BEFORE + sum(self.lengths) + 1

    @property
    def spans(self) -> list[slice]:
        starts = self.rows.starts.tolist()
        return [slice(*pair) for pair in pairwise(starts)]

    def states(self, make: Inputs, *shape: int) -> Tensor:
        """Return random states [num_slots, ...]; those that no row may read are NaN."""
        states = make.normal(2 * len(self.lengths) + 2, *shape, dtype=torch.float32)
        for slot in range(len(states)):
            if slot not in [each for i, each in enumerate(self.before) if i != 1]:
                states[slot] = torch.nan
        return states

    def computed(self, states: Tensor) -> Iterator[tuple[slice, int, Tensor]]:
        """Yield each row with tokens: these, the slot after them, and the state before, fp64."""
        for i, (span, before, after) in enumerate(
            zip(self.spans, self.before, self.after, strict=True)
        ):
            if self.lengths[i]:
                state = states[before].double()
                yield span, after, torch.zeros_like(state) if i == 1 else state

    def assert_only_these_written(self, out: Tensor, before: Tensor, states: Tensor) -> None:
        """Tokens of no row, and slots that are not written, are as before."""
        outside = torch.ones(self.num_tokens, dtype=torch.bool)
        for span in self.spans:
            outside[span] = False
        assert bool(out[outside].isnan().all())
        written = {after for after, n in zip(self.after, self.lengths, strict=True) if n}
        for slot in set(range(len(states))) - written:
            assert torch.equal(before[slot].nan_to_num(7), states[slot].nan_to_num(7))


def make_prompts(lengths: Sequence[int], make: Inputs) -> Prompts:
    order = make.permutation(2 * len(lengths) + 2)
    slots = order[: 2 * len(lengths)].view(2, -1).clone()
    slots[1, 0] = slots[0, 0]
    starts = NUM_BEFORE + torch.cumsum(torch.tensor([0, *lengths]), 0).int()
    first = [5, 0, *range(20, 20 + len(lengths))]
    positions = [torch.arange(first[i], first[i] + n) for i, n in enumerate(lengths)]
    ends = torch.zeros(NUM_BEFORE).int(), torch.zeros(1).int()
    all_positions = torch.cat([ends[0], *positions, ends[1]]).int()
    device = order.device
    rows = ScanRows(starts.to(device), slots, all_positions.to(device), max(lengths))
    return Prompts(rows, lengths, slots[0].tolist(), slots[1].tolist())
