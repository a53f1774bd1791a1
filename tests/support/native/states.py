"""Batches of sequences with states, for the kernels of mixers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.engine.cpu.program import RunInputs, SpanRows
from tests.support.native.ops import run_inputs


@dataclass(frozen=True)
class Part:
    """The tokens of one sequence in a batch: their number, with those before them, and its slot.

    `after` are the slots of the state after each of them, if all are kept.
    """

    num_rows: int
    context_len: int
    slot: int
    after: tuple[int, ...] = ()

    @property
    def is_first(self) -> bool:
        return self.num_rows == self.context_len


# Prompts from their first token and continued, decode steps, a prompt of one token.
PARTS = (Part(5, 5, 3), Part(1, 9, 0), Part(7, 11, 4), Part(1, 1, 6), Part(1, 2, 2))
NUM_SLOTS = 8


def num_rows(parts: Sequence[Part]) -> int:
    return sum(part.num_rows for part in parts)


def inputs(parts: Sequence[Part]) -> RunInputs:
    """Return the batch of these sequences, one after the other."""
    spans, row = [], 0
    for part in parts:
        table = torch.zeros(1, dtype=torch.int32)
        after = torch.tensor(part.after, dtype=torch.int32) if part.after else None
        spans.append(SpanRows(row, part.num_rows, part.context_len, 0, table, part.slot, after))
        row += part.num_rows
    return run_inputs(row, spans=spans)


def states(parts: Sequence[Part], *shape: int) -> Tensor:
    """Return random states [NUM_SLOTS, ...] of the continued sequences; the other slots are NaN."""
    found = torch.full((NUM_SLOTS, *shape), torch.nan)
    generator = torch.Generator().manual_seed(5)
    for part in parts:
        if not part.is_first:
            found[part.slot] = torch.randn(shape, generator=generator)
    return found


def assert_only_these_written(found: Tensor, parts: Sequence[Part]) -> None:
    """The slots of the batch are finite, the others as poisoned as before."""
    used = {part.slot for part in parts}
    for slot in range(NUM_SLOTS):
        assert bool(found[slot].isfinite().all() if slot in used else found[slot].isnan().all())


# Two sequences of which all states are kept, the first ones where they were before; one begins.
VERIFIED = (Part(4, 9, 2, after=(2, 5, 0, 7)), Part(1, 6, 1), Part(3, 3, 4, after=(4, 3, 6)))


def assert_states_after_each_token(
    run: Callable[[Tensor, Tensor, Sequence[Part]], Tensor], x: Tensor, state: Tensor
) -> None:
    """`run` of the rows x of `VERIFIED` keeps the states of single steps, and gives their outputs.

    It returns the outputs and advances the states, [NUM_SLOTS, ...].
    """
    found, row = state.clone(), 0
    together = run(x, found, VERIFIED)
    for part in VERIFIED:
        single = state.clone()
        for i in range(part.num_rows):
            context_len = part.context_len - part.num_rows + 1 + i
            step = (Part(1, context_len, part.slot),)
            out = run(x[row : row + 1], single, step)
            assert torch.equal(out, together[row : row + 1])
            slot = part.after[i] if part.after else part.slot
            assert torch.equal(found[slot], single[part.slot])
            row += 1


def divided(x: Tensor, lengths: Sequence[int]) -> Iterator[tuple[Part, Tensor]]:
    """Divide the rows of a sequence in slot 1 into batches of these lengths."""
    end = 0
    for length in lengths:
        end += length
        yield Part(length, end, 1), x[end - length : end]
