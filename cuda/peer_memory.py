"""Device memory that the GPUs of a tensor-parallel group write to directly (peer access)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu, check, cuda_driver

MAX_WORLD_SIZE = 8
SENTINEL = -1  # as int32: all bits set, a NaN that no computation returns


@dataclass(frozen=True)
class PeerBuffer:
    """One exchange's receive buffer, and where this rank writes in the buffers of all ranks.

    `own` fp32 [world_size, capacity] receives a part from each rank; between exchanges all its
    elements are the sentinel. `addresses` int64 [world_size] are the addresses of this rank's part
    in each rank's buffer, as mapped into this process.
    """

    own: Tensor
    addresses: Tensor
    rank: int

    @property
    def world_size(self) -> int:
        return len(self.own)

    def check_capacity(self, num_elements: int) -> None:
        """Raise `ValueError` unless parts of `num_elements` elements fit."""
        world_size, capacity = self.own.shape
        if not 2 <= world_size <= MAX_WORLD_SIZE or not 0 <= self.rank < world_size:
            raise ValueError(
                f"rank {self.rank} of {world_size}; a group has 2 to {MAX_WORLD_SIZE} ranks"
            )
        if num_elements > capacity:
            raise ValueError(f"a part of {num_elements} elements; the peer buffer holds {capacity}")


class PeerMemory:
    """This GPU's memory that the other ranks write to, and theirs mapped into this process.

    All ranks call the constructor together. `exchange` sends this rank's bytes to all ranks and
    returns those of all ranks in order. Raises `DeviceError` if a GPU has no peer access. The
    buffers must not be used after `close`.
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
        check(driver.cuMemsetD32(self._own, SENTINEL & 0xFFFFFFFF, num_bytes // 4))
        check(driver.cuCtxSynchronize())
        handle = check(driver.cuIpcGetMemHandle(self._own))
        flags = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        self._bases: list[int] = []
        for peer_rank, data in enumerate(exchange(bytes(handle.reserved))):
            if peer_rank == rank:
                self._bases.append(self._own)
                continue
            peer = driver.CUipcMemHandle()
            peer.reserved = list(data)
            address = check(driver.cuIpcOpenMemHandle(peer, flags))
            self._opened.append(address)
            self._bases.append(int(address))

    def allocate(self, num_elements: int) -> PeerBuffer:
        """Allocate a buffer for parts of `num_elements`; all ranks allocate in the same order."""
        capacity = -(-num_elements // 4) * 4
        world_size, start = len(self._bases), self._next
        self._next += 4 * world_size * capacity
        if self._next > self._num_bytes:
            raise ValueError(f"peer memory of {self._num_bytes} bytes; {self._next} are needed")
        own = _tensor(self._own + start, (world_size, capacity), self._gpu.device)
        addresses = [base + start + 4 * self._rank * capacity for base in self._bases]
        return PeerBuffer(own, torch.tensor(addresses, device=self._gpu.device), self._rank)

    def close(self) -> None:
        """Unmap the other ranks' memory and free this rank's, after all kernels have ended."""
        driver = cuda_driver()
        torch.cuda.synchronize(self._gpu.device)
        for address in self._opened:
            check(driver.cuIpcCloseMemHandle(address))
        self._opened.clear()
        if self._own:
            check(driver.cuMemFree(self._own))
            self._own = 0


class _CudaArray:
    """Device memory described by the CUDA array interface, which torch reads."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f4",
            "data": (address, False),
            "version": 3,
        }


def _tensor(address: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.as_tensor(_CudaArray(address, shape), device=device)
