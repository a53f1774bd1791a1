"""Ranks as threads of one process, that meet at each sum."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from swiftchat.engine.comm.communicator import RankPlacement

T = TypeVar("T")


class ThreadRendezvous:
    """Where the threads leave what they have, and fetch what all have."""

    def __init__(self, size: int) -> None:
        self.size = size
        # Two, taken in turn: nobody leaves the next but one before all have fetched these.
        self._left = [[torch.empty(0)] * size, [torch.empty(0)] * size]
        self._barrier = threading.Barrier(size, timeout=60)

    def exchange(self, turn: int, rank: int, x: Tensor) -> list[Tensor]:
        left = self._left[turn % 2]
        left[rank] = x
        self._barrier.wait()
        return list(left)

    def abort(self) -> None:
        self._barrier.abort()


class ThreadCommunicator:
    """One thread's view of a meeting, as `engine.comm.communicator.Communicator` describes it."""

    def __init__(self, meeting: ThreadRendezvous, rank: int) -> None:
        self.size, self.rank = meeting.size, rank
        self.placement = RankPlacement(rank, meeting.size)
        self._meeting, self._turn = meeting, 0

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self._exchange(x)).sum(0)

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        parts = self._exchange(x)
        each = -(-width // self.size)
        assert [part.shape[1] for part in parts[:-1]] == [each] * (self.size - 1)
        together = torch.cat(parts, 1)
        assert together.shape[1] == width
        return together

    def broadcast_from_first(self, number: int) -> int:
        return int(self._exchange(torch.tensor(number))[0])

    def min_across_ranks(self, number: int) -> int:
        return int(torch.stack(self._exchange(torch.tensor(number))).min())

    def close(self) -> None:
        self._meeting.abort()

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self._turn += 1
        return self._meeting.exchange(self._turn, self.rank, x)


def run_ranks(size: int, run: Callable[[int, ThreadCommunicator], T]) -> list[T]:
    """What `run(rank, ranks)` returns in each of `size` threads."""
    meeting = ThreadRendezvous(size)

    def guarded(rank: int) -> T:
        try:
            return run(rank, ThreadCommunicator(meeting, rank))
        except BaseException:
            meeting.abort()  # the others shall not wait for this one
            raise

    interval, num_threads = sys.getswitchinterval(), torch.get_num_threads()
    sys.setswitchinterval(1e-4)  # they wait for each other after every few operations
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(size) as pool:
            jobs = [pool.submit(guarded, rank) for rank in range(size)]
            errors = [error for job in jobs if (error := job.exception())]
    finally:
        sys.setswitchinterval(interval)
        torch.set_num_threads(num_threads)
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return [job.result() for job in jobs]
