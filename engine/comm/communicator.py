"""What the ranks of one model tell each other while they compute: sums, and pieces put together."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from swiftchat.errors import DeviceError


@dataclass(frozen=True)
class RankPlacement:
    """Where a rank is: which of its machine's ranks, and how many have to share that machine.

    `address` is where it listens for the others, who all are on this machine if `all_here`.
    """

    local_rank: int
    num_local_ranks: int
    address: str = "127.0.0.1"
    is_single_host: bool = True


_ONLY_SEAT = RankPlacement(0, 1)


class Communicator(Protocol):
    """The ranks that compute one model in lockstep, seen from one of them.

    Each calls the same methods in the same order with tensors of the same shapes, and gets the
    same numbers to the bit. Raises `DeviceError` where another is gone, if that can be noticed.
    """

    size: int
    rank: int
    placement: RankPlacement

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of every rank's x. May be x itself, changed in place."""

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        """The columns of every rank's x side by side, `width` in all.

        Each rank has an equal number of them, rounded up; the last may have fewer.
        """

    def broadcast_from_first(self, number: int) -> int:
        """Rank 0's number."""

    def min_across_ranks(self, number: int) -> int:
        """The least of every rank's number."""

    def close(self) -> None:
        """Let go of the others; nothing may be called after."""


class SingleRank:
    """One rank that has the whole model, or a stage of it: nobody to wait for."""

    size, rank = 1, 0

    def __init__(self, placement: RankPlacement = _ONLY_SEAT) -> None:
        self.placement = placement

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        return x

    def broadcast_from_first(self, number: int) -> int:
        return number

    def min_across_ranks(self, number: int) -> int:
        return number

    def close(self) -> None:
        return


class GlooCommunicator:
    """Processes on CPUs, of this machine unless `seat` says otherwise, that meet over its address.

    `store` is a store of `torch.distributed`, where they find each other; its `FileStore` needs
    no port. Raises `DeviceError` when the others do not come or answer within `timeout_s`.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout_s: float = 60.0,
        placement: RankPlacement | None = None,
    ) -> None:
        self.placement = placement or RankPlacement(rank, size)
        gloo: Any = dist.ProcessGroupGloo  # of which torch's stubs do not say all
        options = gloo._Options()
        options._timeout = timedelta(seconds=timeout_s)
        # Left to itself it listens where this machine's name leads to.
        options._devices = [gloo.create_device(hostname=self.placement.address)]
        self.size, self.rank = size, rank
        with _lost_sight():
            self._group = gloo(store, rank, size, options)

    def all_reduce(self, x: Tensor) -> Tensor:
        with _lost_sight():
            self._group.allreduce([x]).wait()
        return x

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        each = -(-width // self.size)
        parts = [torch.empty(len(x), each, dtype=x.dtype) for _ in range(self.size)]
        with _lost_sight():
            self._group.allgather([parts], [F.pad(x, (0, each - x.shape[1]))]).wait()
        return torch.cat(parts, 1)[:, :width]

    def broadcast_from_first(self, number: int) -> int:
        return int(self.broadcast(torch.tensor([number]), 0))

    def min_across_ranks(self, number: int) -> int:
        return min(self.all_gather_int(number))

    def close(self) -> None:
        self._group.abort()

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        """The x of rank `source`; everybody's own is overwritten with it."""
        with _lost_sight():
            self._group.broadcast(x, source).wait()
        return x

    def send(self, x: Tensor, to: int) -> None:
        """Send x to a rank, and wait until that one receives it."""
        with _lost_sight():
            self._group.send([x], to, 0).wait()

    def receive(self, x: Tensor, source: int) -> Tensor:
        """x, overwritten with what rank `source` sends, which has to be of its shape."""
        with _lost_sight():
            self._group.recv([x], source, 0).wait()
        return x

    def all_gather_int(self, number: int) -> list[int]:
        """Every rank's number, in the order of the ranks."""
        return [
            int.from_bytes(n, "big", signed=True) for n in self.all_gather_bytes(_bytes_of(number))
        ]

    def all_gather_bytes(self, mine: bytes) -> list[bytes]:
        """Every rank's bytes, equally many, in the order of the ranks."""
        parts = [torch.empty(len(mine), dtype=torch.uint8) for _ in range(self.size)]
        with _lost_sight():
            self._group.allgather([parts], [torch.tensor(list(mine), dtype=torch.uint8)]).wait()
        return [bytes(part.tolist()) for part in parts]


@contextmanager
def _lost_sight() -> Iterator[None]:
    """Turn gloo's errors, which speak of sockets, into one that says what they mean."""
    try:
        yield
    except RuntimeError as error:
        words = str(error).strip().splitlines()[0]
        raise DeviceError(f"no answer from the other ranks: {words}") from error


def _bytes_of(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)
