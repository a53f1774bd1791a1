"""Ranks of a group on one GPU, each with its stream: they wait for each other as GPUs do.

Only a few ranks with small parts: the blocks of all of them, and of each one's next kernel, must
find room side by side.
"""

from collections.abc import Callable, Sequence

import torch

from swiftchat.cuda.peer_memory import PeerBuffer


def peer_buffers(world: int, numbers: int) -> list[PeerBuffer]:
    """Each rank's inbox for parts of so many numbers, empty."""
    own = [torch.full((world, numbers), -1, dtype=torch.int32, device="cuda") for _ in range(world)]
    starts = [tensor.data_ptr() for tensor in own]
    return [
        PeerBuffer(
            own[rank].view(torch.float32),
            torch.tensor([start + 4 * rank * numbers for start in starts], device="cuda"),
            rank,
        )
        for rank in range(world)
    ]


def are_empty(boxes: Sequence[PeerBuffer]) -> bool:
    return all(bool((box.own.view(torch.int32) == -1).all()) for box in boxes)


def together(world: int, work: Callable[[int], None]) -> None:
    """Run work(rank) for all ranks, each on its own stream, and wait for all of them."""
    torch.cuda.synchronize()
    for rank in range(world):
        with torch.cuda.stream(torch.cuda.Stream()):
            work(rank)
    torch.cuda.synchronize()
