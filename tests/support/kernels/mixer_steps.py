"""Decode steps of mixers with a state: random inputs, and the convolution in fp64."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from swiftchat.cuda.ops.mixers.steps import StepSlots
from tests.support.kernels.case import Inputs

# Accuracy in fp32 of exponentials and inverse square roots, which the kernels approximate.
FP32_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Steps:
    """Rows of a step, each with the slots of its state before and after it.

    The rows are in the middle of a sequence, but for `first`, and `unused`. Rows of one chain read
    what the row before them writes.
    """

    rows: StepSlots
    before: list[int]
    after: list[int]
    num_slots: int
    first: int
    unused: int

    @property
    def used(self) -> list[int]:
        """The rows with a sequence."""
        return [row for row in range(len(self.before)) if row != self.unused]

    def states(self, make: Inputs, *shape: int) -> Tensor:
        """Return random states [num_slots, ...] of the sequences; the other slots are NaN."""
        states = make.normal(self.num_slots, *shape, dtype=torch.float32)
        known = {self.before[row] for row in self.used if row != self.first} - set(self.after)
        for slot in set(range(self.num_slots)) - known:
            states[slot] = torch.nan
        return states

    def in_order(
        self, states: Sequence[Tensor], compute: Callable[[Sequence[Tensor]], Sequence[Tensor]]
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the outputs and the states after all rows, one row after the other in fp64.

        `compute` returns the outputs and the new states of all rows, given the states of all slots.
        """
        known, outputs = [each.double() for each in states], dict[int, Tensor]()
        for row in self.used:
            out, *after = compute(known)
            outputs[row] = out[row]
            for each, new in zip(known, after, strict=True):
                each[self.after[row]] = new[row]
        return torch.stack([outputs[row] for row in self.used]), known

    def read(self, states: Tensor) -> Tensor:
        """Return the states before the step in fp64: [rows, ...]; unused rows have any."""
        found = states[self.before].double()
        found[self.first] = 0
        return found

    def assert_only_after_written(self, before: Tensor, found: Tensor) -> None:
        """No other slot has changed."""
        written = {self.after[row] for row in self.used}
        for slot in set(range(len(found))) - written:
            assert torch.equal(before[slot].nan_to_num(7), found[slot].nan_to_num(7))


def make_steps(
    n: int, make: Inputs, *, odd: bool, early_reads: bool = False, chains: Sequence[int] = ()
) -> Steps:
    """Return slots of n rows: the first begins a sequence, the last is unused if there are two.

    With `odd` both slots of each row are exchanged, and the step that is counted is odd. `chains`
    are the numbers of adjacent rows of one sequence.
    """
    num_slots = 2 * n + 3
    order = make.permutation(num_slots).tolist()
    before, after = order[:n], order[n : 2 * n]
    for row in range(1, sum(chains)):
        if row not in accumulate(chains):
            before[row] = after[row - 1]
    unused = n - 1 if n > 1 else -1
    lists = [list(before), list(after)]
    if unused >= 0:
        lists[0][unused] = lists[1][unused] = -1
    device = make.permutation(1).device
    positions = torch.arange(n, dtype=torch.int32, device=device)
    slots = torch.full((2, n + 2), -1, dtype=torch.int32, device=device)
    slots[:, :n] = torch.tensor(lists[::-1] if odd else lists)
    step = torch.tensor([41], device=device) if odd else None
    rows = StepSlots(slots, positions, step, early_reads, bool(chains))
    return Steps(rows, before, after, num_slots, 0, unused)


def convolve(
    x: Tensor, before: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the convolution at x fp64 [n, channels], and the inputs before the next token."""
    tokens = torch.cat([before, x.unsqueeze(2)], 2)
    out = (tokens * weight.double()).sum(2)
    return (out if bias is None else out + bias.double()), tokens[..., 1:]
