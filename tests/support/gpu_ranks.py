"""Ranks that share one GPU, each on a CUDA stream of its own, with peer buffers between them.

Only for a few ranks with small tensors: the thread blocks of all ranks, and of each rank's next
kernel, must be resident at the same time.
"""

from collections.abc import Callable, Sequence

import torch

from swiftchat.cuda.peer_memory import PeerBuffer


def peer_buffers(world_size: int, num_elements: int) -> list[PeerBuffer]:
    """Return each rank's peer buffer, filled with the sentinel value."""
    own = [
        torch.full((world_size, num_elements), -1, dtype=torch.int32, device="cuda")
        for _ in range(world_size)
    ]
    starts = [tensor.data_ptr() for tensor in own]
    return [
        PeerBuffer(
            own[rank].view(torch.float32),
            torch.tensor([start + 4 * rank * num_elements for start in starts], device="cuda"),
            rank,
        )
        for rank in range(world_size)
    ]


def hold_only_sentinels(buffers: Sequence[PeerBuffer]) -> bool:
    return all(bool((buffer.own.view(torch.int32) == -1).all()) for buffer in buffers)


def run_on_streams(world_size: int, work: Callable[[int], None]) -> None:
    """Run `work(rank)` for all ranks, each on a stream of its own, and wait for all of them."""
    torch.cuda.synchronize()
    for rank in range(world_size):
        with torch.cuda.stream(torch.cuda.Stream()):
            work(rank)
    torch.cuda.synchronize()
