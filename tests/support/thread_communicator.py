"""Tensor-parallel ranks as threads of one process, with a communicator between them."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from swiftchat.engine.comm.communicator import RankPlacement

T = TypeVar("T")


class SharedSlots:
    """A tensor per rank, with a barrier: the exchange of all collective operations."""

    def __init__(self, size: int) -> None:
        self.size = size
        # Two alternating sets: the barrier keeps a rank from writing a set that others still read.
        self._slots = [[torch.empty(0)] * size, [torch.empty(0)] * size]
        self._barrier = threading.Barrier(size, timeout=60)

    def exchange(self, turn: int, rank: int, x: Tensor) -> list[Tensor]:
        slots = self._slots[turn % 2]
        slots[rank] = x
        self._barrier.wait()
        return list(slots)

    def abort(self) -> None:
        self._barrier.abort()


class ThreadCommunicator:
    """A `Communicator` for one of several threads."""

    def __init__(self, slots: SharedSlots, rank: int) -> None:
        self.size, self.rank = slots.size, rank
        self.placement = RankPlacement(rank, slots.size)
        self._slots, self._turn = slots, 0

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self._exchange(x)).sum(0)

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        shards = self._exchange(x)
        columns = -(-width // self.size)
        assert [shard.shape[1] for shard in shards[:-1]] == [columns] * (self.size - 1)
        gathered = torch.cat(shards, 1)
        assert gathered.shape[1] == width
        return gathered

    def broadcast_from_first(self, numbers: list[int]) -> list[int]:
        found: list[int] = self._exchange(torch.tensor(numbers))[0].tolist()
        return found

    def min_across_ranks(self, number: int) -> int:
        return int(torch.stack(self._exchange(torch.tensor(number))).min())

    def close(self) -> None:
        self._slots.abort()

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self._turn += 1
        return self._slots.exchange(self._turn, self.rank, x)


@contextmanager
def frequent_thread_switches() -> Iterator[None]:
    """Switch threads more often, for threads that wait for each other after a few operations.

    Restore that and torch's number of threads at the end.
    """
    interval, num_threads = sys.getswitchinterval(), torch.get_num_threads()
    sys.setswitchinterval(1e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        torch.set_num_threads(num_threads)


def run_ranks(size: int, run: Callable[[int, ThreadCommunicator], T]) -> list[T]:
    """Return the results of `run(rank, communicator)` in each of `size` threads."""
    slots = SharedSlots(size)

    def guarded(rank: int) -> T:
        try:
            return run(rank, ThreadCommunicator(slots, rank))
        except BaseException:
            slots.abort()  # wakes the ranks that wait for this one
            raise

    with frequent_thread_switches(), ThreadPoolExecutor(size) as pool:
        torch.set_num_threads(1)
        jobs = [pool.submit(guarded, rank) for rank in range(size)]
        errors = [error for job in jobs if (error := job.exception())]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return [job.result() for job in jobs]
