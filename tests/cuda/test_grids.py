"""Launches have a block for all that they compute; a GPU is not needed."""

from types import SimpleNamespace

import pytest
import torch

from swiftchat.cuda.ops.moe.bulk_gate_up import bulk_gate_up


@pytest.mark.parametrize(("expert_size", "num_tiles"), [(5, 1), (96, 12), (97, 13)])
def test_each_tile_of_each_chosen_expert_has_a_block(expert_size: int, num_tiles: int) -> None:
    """A tile is eight rows of gate and of up."""
    grids = []
    gpu = SimpleNamespace(kernel=lambda *_, **__: lambda grid, *_, **__: grids.append(grid))
    matrices = SimpleNamespace(
        scheme="PLAIN", group_size=0, columns=64, values=torch.empty(16), scales=None, macros={}
    )
    num_rows, num_chosen = 3, 8
    arguments = {
        "x": torch.empty(num_rows, 64, dtype=torch.bfloat16),
        "out": torch.empty(num_rows, num_chosen, expert_size),
    }
    bulk_gate_up(gpu, matrices, "silu", arguments)  # type: ignore[arg-type]
    assert grids == [(num_chosen * num_tiles, num_rows)]
