"""advance against the same steps in Python, exactly."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.sampling.sampling import advance

pytestmark = pytest.mark.gpu
BLOCK_SIZE = 4


def test_rows_advance_until_their_block_tables_end(gpu: Gpu) -> None:
    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    # Row 1 is unused, row 2 has an invalid sample, row 3 is at the end of its block table.
    sampled, tokens = ints(7, 8, -1, 9), ints(1, 2, 3, 4)
    positions, context_lens, slots = ints(2, 0, 3, 11), ints(3, 0, 4, 12), ints(0, -1, 0, 0)
    tables = ints(5, 6, 7, 0, 0, 0, 9, 8, 3, 1, 2, 4).view(4, 3)
    counts = torch.zeros(4, 10, dtype=torch.int32, device="cuda")
    ring = torch.full((2, 8), -7, dtype=torch.int32).pin_memory()
    step = torch.tensor([5], device="cuda")
    advance(
        gpu,
        sampled,
        tokens=tokens,
        positions=positions,
        context_lens=context_lens,
        slot_mapping=slots,
        block_tables=tables,
        counts=counts,
        ring=ring,
        step=step,
        block_size=BLOCK_SIZE,
    )
    torch.cuda.synchronize()
    assert ring.tolist() == [[-7] * 8, [7, 8, -1, 9, -7, -7, -7, -7]]
    assert step.item() == 6
    assert tokens.tolist() == [7, 2, 0, 9]
    assert positions.tolist() == [3, 0, 4, 11]
    assert context_lens.tolist() == [4, 0, 5, 12]
    assert slots.tolist() == [5 * 4 + 3, -1, 8 * 4, -1]
    assert counts.nonzero().tolist() == [[0, 7], [3, 9]]


def test_ids_of_a_smaller_vocabulary_and_positions_with_gaps(gpu: Gpu) -> None:
    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    # The cache has 7 and 3 tokens, the positions of the newest ones are 20 and 9.
    tokens, positions, context_lens, slots = ints(1, 2), ints(20, 9), ints(7, 3), ints(0, 0)
    ring = torch.full((2, 2), -7, dtype=torch.int32).pin_memory()
    advance(
        gpu,
        ints(2, -1),
        tokens=tokens,
        positions=positions,
        context_lens=context_lens,
        slot_mapping=slots,
        block_tables=ints(5, 6, 9, 8).view(2, 2),
        counts=None,
        ring=ring,
        step=torch.tensor([4], device="cuda"),
        block_size=BLOCK_SIZE,
        id_map=ints(30, 31, 90),
    )
    torch.cuda.synchronize()
    assert ring.tolist() == [[90, -1], [-7, -7]]
    assert tokens.tolist() == [90, 0]
    assert positions.tolist() == [21, 10]
    assert context_lens.tolist() == [8, 4]
    assert slots.tolist() == [6 * 4 + 3, 9 * 4 + 3]


def test_too_many_rows_raise(gpu: Gpu) -> None:
    rows = torch.zeros(257, dtype=torch.int32, device="cuda")
    table, ring = rows.view(257, 1), torch.zeros(2, 257, dtype=torch.int32).pin_memory()
    with pytest.raises(ValueError, match="256"):
        advance(
            gpu,
            rows,
            tokens=rows,
            positions=rows,
            context_lens=rows,
            slot_mapping=rows,
            block_tables=table,
            counts=table,
            ring=ring,
            step=torch.zeros(1, dtype=torch.int64, device="cuda"),
            block_size=BLOCK_SIZE,
        )
