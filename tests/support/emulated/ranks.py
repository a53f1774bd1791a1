"""The kernels between ranks, which are threads of one process, on the CPU."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.ops.linear.layout import MAX_GEMV_ROWS
from swiftchat.cuda.peer_memory import SENTINEL, PeerBuffer
from swiftchat.engine.comm.gpu_communicator import GpuCommunicator, PeerBuffers
from tests.support.emulated.memory import matrix
from tests.support.thread_communicator import ThreadCommunicator


class EmulatedRanks(GpuCommunicator):
    """A rank with peer buffers; other exchanges go through `threads`."""

    def __init__(self, threads: ThreadCommunicator, buffers: PeerBuffers) -> None:
        self.size, self.rank, self.placement = threads.size, threads.rank, threads.placement
        self.peer_buffers, self._threads = buffers, threads
        self.num_others = 0  # exchanges without peer buffers

    def all_reduce(self, x: Tensor) -> Tensor:
        self.num_others += 1
        return self._threads.all_reduce(x)

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        self.num_others += 1
        return self._threads.all_gather(x, width)


def peer_buffers(num_ranks: int, hidden_size: int, vocab_size: int) -> list[PeerBuffers]:
    """Return each rank's buffers, filled with the sentinel value."""
    vocab_per_rank = -(-vocab_size // num_ranks)
    row = MAX_GEMV_ROWS * hidden_size
    kinds = [_buffers(num_ranks, size) for size in (row, row, row, MAX_GEMV_ROWS * vocab_per_rank)]
    return [PeerBuffers(*own, vocab_per_rank) for own in zip(*kinds, strict=True)]


def _buffers(num_ranks: int, size: int) -> list[PeerBuffer]:
    memories = [
        torch.full((num_ranks, size), SENTINEL, dtype=torch.int32).view(torch.float32)
        for _ in range(num_ranks)
    ]
    return [
        PeerBuffer(own, torch.tensor([memory[rank].data_ptr() for memory in memories]), rank)
        for rank, own in enumerate(memories)
    ]


def send(part: Tensor, addresses: Tensor) -> None:
    """Write this rank's part, fp32 [n, columns], to the peer buffers of all ranks."""
    n, columns = part.shape
    for address in addresses.tolist():
        place = matrix(address, n, columns, columns)
        assert (place.view(torch.int32) == SENTINEL).all()  # the exchange before has ended
        place.copy_(part)


def rank_kernels(arrived: threading.Barrier) -> Mapping[str, Callable[[Any], None]]:
    """Return the kernels that receive parts; all ranks wait for each other at the barrier."""

    def received(buffer: Tensor, size: int) -> Tensor:
        """Return the parts [world_size, size], and make their places ready again."""
        arrived.wait()
        parts = buffer[:, :size].clone()
        assert (parts.view(torch.int32) != SENTINEL).all()
        buffer[:, :size].view(torch.int32).fill_(SENTINEL)
        return parts

    def all_reduce(a: Any) -> None:
        if a.defines["SEND"] == "1":
            send(a.part, a.addresses)
        total = received(a.buffer, a.num_elements).sum(0).view(a.x.shape)
        a.x.copy_(a.x + total if a.accumulate else total)

    def all_gather(a: Any) -> None:
        n, width = a.out.shape
        parts = received(a.buffer, n * a.shard_width).view(-1, n, a.shard_width)
        a.out.copy_(parts.transpose(0, 1).reshape(n, -1)[:, :width])

    return {"all_reduce": all_reduce, "all_gather": all_gather}
