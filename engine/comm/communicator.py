"""Collective operations between the tensor-parallel ranks of a model; on CPUs through gloo."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.torch_private import gloo_group
from swiftchat.errors import DeviceError


@dataclass(frozen=True)
class RankPlacement:
    """The host-local number of a rank and the number of ranks on its host.

    `address` is the local interface that the rank listens on.
    """

    local_rank: int
    num_local_ranks: int
    address: str = "127.0.0.1"
    is_single_host: bool = True


_SINGLE_RANK = RankPlacement(0, 1)


class Communicator(Protocol):
    """Collective operations of one rank.

    All ranks call the same methods in the same order with tensors of the same shape, and get
    bitwise equal results. Methods raise `DeviceError` if the connection to another rank breaks.
    """

    size: int
    rank: int
    placement: RankPlacement

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of x over all ranks. May work in place and return x itself."""

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        """Return the columns of every rank's x side by side, `width` in all.

        Each rank has ceil(width / size) columns, the last one possibly fewer.
        """

    def broadcast_from_first(self, numbers: list[int]) -> list[int]:
        """Return rank 0's numbers; all ranks must have as many."""

    def min_across_ranks(self, number: int) -> int:
        """Return the smallest number of all ranks."""

    def close(self) -> None:
        """Disconnect from the other ranks; no method may be called afterwards."""


class SingleRank:
    """The communicator of a model, or pipeline stage, with one rank."""

    size, rank = 1, 0

    def __init__(self, placement: RankPlacement = _SINGLE_RANK) -> None:
        self.placement = placement

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        return x

    def broadcast_from_first(self, numbers: list[int]) -> list[int]:
        return numbers

    def min_across_ranks(self, number: int) -> int:
        return number

    def close(self) -> None:
        return


class GlooCommunicator:
    """A communicator for ranks on CPUs, over TCP.

    The ranks exchange their addresses through `store`, a store of `torch.distributed`. Operations
    raise `DeviceError` if another rank does not answer within `timeout_s`.
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
        self.size, self.rank = size, rank
        with _connection_errors():
            self._group = gloo_group(store, rank, size, timeout_s, self.placement.address)

    def all_reduce(self, x: Tensor) -> Tensor:
        with _connection_errors():
            self._group.allreduce([x]).wait()
        return x

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        columns = -(-width // self.size)
        shards = [torch.empty(len(x), columns, dtype=x.dtype) for _ in range(self.size)]
        with _connection_errors():
            self._group.allgather([shards], [F.pad(x, (0, columns - x.shape[1]))]).wait()
        return torch.cat(shards, 1)[:, :width]

    def broadcast_from_first(self, numbers: list[int]) -> list[int]:
        found: list[int] = self.broadcast(torch.tensor(numbers), 0).tolist()
        return found

    def min_across_ranks(self, number: int) -> int:
        return min(self.all_gather_int(number))

    def close(self) -> None:
        self._group.abort()

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        """Overwrite x with that of rank `source` and return it."""
        with _connection_errors():
            self._group.broadcast(x, source).wait()
        return x

    def send(self, x: Tensor, to: int) -> None:
        """Send x to a rank and wait until that rank receives it."""
        with _connection_errors():
            self._group.send([x], to, 0).wait()

    def receive(self, x: Tensor, source: int) -> Tensor:
        """Overwrite x with the tensor of the same shape that rank `source` sends; return x."""
        with _connection_errors():
            self._group.recv([x], source, 0).wait()
        return x

    def all_gather_int(self, number: int) -> list[int]:
        """Return every rank's number, in rank order."""
        encoded = number.to_bytes(8, "big", signed=True)
        return [int.from_bytes(n, "big", signed=True) for n in self.all_gather_bytes(encoded)]

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Return every rank's bytes, in rank order; all must have the same length."""
        received = [torch.empty(len(data), dtype=torch.uint8) for _ in range(self.size)]
        with _connection_errors():
            self._group.allgather([received], [torch.tensor(list(data), dtype=torch.uint8)]).wait()
        return [bytes(tensor.tolist()) for tensor in received]


@contextmanager
def _connection_errors() -> Iterator[None]:
    """Raise gloo's socket errors as `DeviceError`."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise DeviceError(f"no answer from the other ranks: {reason}") from error
