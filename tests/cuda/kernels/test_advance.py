"""advance against the same steps in Python, exactly."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.advance import advance

pytestmark = pytest.mark.gpu
BLOCK_SIZE = 4


def test_lanes_move_on_until_their_tables_end(gpu: Gpu) -> None:
    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    # Lane 1 is unused, lane 2 sampled from logits that were not finite, lane 3 is at the end.
    sampled, tokens = ints(7, 8, -1, 9), ints(1, 2, 3, 4)
    positions, context_lens, slots = ints(2, 0, 3, 11), ints(3, 0, 4, 12), ints(0, -1, 0, 0)
    tables = ints(5, 6, 7, 0, 0, 0, 9, 8, 3, 1, 2, 4).view(4, 3)
    counts = torch.zeros(4, 10, dtype=torch.int32, device="cuda")
    ring = torch.full((2, 8), -7, dtype=torch.int32).pin_memory()
    step = torch.tensor([5], device="cuda")
    advance(
        gpu, sampled, tokens, positions, context_lens, slots, tables, counts, ring, step, BLOCK_SIZE
    )
    torch.cuda.synchronize()
    assert ring.tolist() == [[-7] * 8, [7, 8, -1, 9, -7, -7, -7, -7]]
    assert step.item() == 6
    assert tokens.tolist() == [7, 2, 0, 9]
    assert positions.tolist() == [3, 0, 4, 11]
    assert context_lens.tolist() == [4, 0, 5, 12]
    assert slots.tolist() == [5 * 4 + 3, -1, 8 * 4, -1]
    assert counts.nonzero().tolist() == [[0, 7], [3, 9]]


def test_too_many_lanes_are_refused(gpu: Gpu) -> None:
    lanes = torch.zeros(129, dtype=torch.int32, device="cuda")
    table, ring = lanes.view(129, 1), torch.zeros(2, 129, dtype=torch.int32).pin_memory()
    with pytest.raises(ValueError, match="128"):
        advance(
            gpu,
            lanes,
            lanes,
            lanes,
            lanes,
            lanes,
            table,
            table,
            ring,
            torch.zeros(1, dtype=torch.int64, device="cuda"),
            BLOCK_SIZE,
        )
