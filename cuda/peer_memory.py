"""Memory in which the GPUs of a group leave numbers for each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu, check, cuda_driver

MAX_WORLD = 8
EMPTY = -1  # as int32: all bits set, a NaN that no computation gives


@dataclass(frozen=True)
class PeerBuffer:
    """Where all ranks' parts of one exchange arrive, and where this rank's parts go.

    `own` fp32 [world, numbers] is empty (all bits set) between exchanges. `addresses` int64
    [world]: where this rank's part begins in each rank's inbox, as this process sees it.
    """

    own: Tensor
    addresses: Tensor
    rank: int

    @property
    def world(self) -> int:
        """The number of ranks."""
        return len(self.own)

    def check_part(self, numbers: int, gpu: Gpu) -> None:
        """Raise `ValueError` unless parts of so many numbers fit."""
        world, room = self.own.shape
        check_tensor("inbox", self.own, (world, room), "float32", gpu)
        check_tensor("addresses", self.addresses, (world,), "int64", gpu)
        if not 2 <= world <= MAX_WORLD or not 0 <= self.rank < world:
            raise ValueError(f"rank {self.rank} of {world}; a group has 2 to {MAX_WORLD}")
        if numbers > room:
            raise ValueError(f"a part of {numbers} numbers; the inbox has room for {room}")


class PeerMemory:
    """Memory of this GPU that the others of the group write to, and theirs as seen from here.

    `exchange` hands this rank's bytes to all and returns everybody's, in the order of the ranks;
    it is called once, by all of them. Raises `DeviceError` where GPUs cannot reach each other.
    After `close` the inboxes must not be used.
    """

    def __init__(
        self, gpu: Gpu, num_bytes: int, rank: int, exchange: Callable[[bytes], Sequence[bytes]]
    ) -> None:
        driver = cuda_driver()
        self._gpu, self._rank = gpu, rank
        self._opened: list[Any] = []
        self._next = 0
        self._num_bytes = num_bytes
        self._own = int(check(driver.cuMemAlloc(num_bytes)))
        check(driver.cuMemsetD32(self._own, 0xFFFFFFFF, num_bytes // 4))
        check(driver.cuCtxSynchronize())
        handle = check(driver.cuIpcGetMemHandle(self._own))
        flags = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        self._bases: list[int] = []
        for other, data in enumerate(exchange(bytes(handle.reserved))):
            if other == rank:
                self._bases.append(self._own)
                continue
            theirs = driver.CUipcMemHandle()
            theirs.reserved = list(data)
            address = check(driver.cuIpcOpenMemHandle(theirs, flags))
            self._opened.append(address)
            self._bases.append(int(address))

    def inbox(self, numbers: int) -> PeerBuffer:
        """The next inbox for parts of so many numbers; all ranks make the same ones in order."""
        room = -(-numbers // 4) * 4
        world, start = len(self._bases), self._next
        self._next += 4 * world * room
        if self._next > self._num_bytes:
            raise ValueError(f"{self._next} bytes of {self._num_bytes} are used up")
        own = _tensor(self._own + start, (world, room), self._gpu.device)
        addresses = [base + start + 4 * self._rank * room for base in self._bases]
        return PeerBuffer(own, torch.tensor(addresses, device=self._gpu.device), self._rank)

    def close(self) -> None:
        """Let go of the others' memory and give back this rank's, when no kernel uses them."""
        driver = cuda_driver()
        torch.cuda.synchronize(self._gpu.device)
        for address in self._opened:
            check(driver.cuIpcCloseMemHandle(address))
        self._opened.clear()
        if self._own:
            check(driver.cuMemFree(self._own))
            self._own = 0


class _Stretch:
    """Device memory as other libraries' arrays are described to torch."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f4",
            "data": (address, False),
            "version": 3,
        }


def _tensor(address: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.as_tensor(_Stretch(address, shape), device=device)
