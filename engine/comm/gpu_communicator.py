"""Collective operations between ranks on GPUs: through NCCL and through peer buffers."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.layout import MAX_GEMV_ROWS
from swiftchat.cuda.peer_memory import MAX_WORLD_SIZE, PeerBuffer, PeerMemory
from swiftchat.engine.comm.communicator import GlooCommunicator, RankPlacement
from swiftchat.engine.linear.torch_private import all_gather_into, nccl_group
from swiftchat.errors import DeviceError
from swiftchat.weights.architectures.parts.model import ModelConfig


@dataclass(frozen=True)
class PeerBuffers:
    """The peer buffers of a decode step with up to `MAX_GEMV_ROWS` rows.

    Consecutive exchanges of a step use different buffers, as `all_reduce` requires.
    """

    embedding: PeerBuffer
    attention: PeerBuffer
    mlp: PeerBuffer
    logits: PeerBuffer
    vocab_per_rank: int  # columns of the logits on every rank but the last


class GpuCommunicator:
    """A `Communicator` for ranks that have a GPU each.

    Parameters as for `GlooCommunicator`. Prefill uses NCCL. Decode steps use peer buffers after
    `allocate_peer_buffers`, if the GPUs have peer access. Integers and bytes go through gloo.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        device: torch.device,
        timeout_s: float,
        placement: RankPlacement,
    ) -> None:
        self.placement = placement
        self.size, self.rank = size, rank
        self.peer_buffers: PeerBuffers | None = None
        self._memory: PeerMemory | None = None
        self._device = device
        self._control, self._group = connect_groups(store, rank, size, device, timeout_s, placement)
        # NCCL connects at the first operation: do it while all ranks wait and the store exists.
        self.all_reduce(torch.zeros(1, device=device))

    def all_reduce(self, x: Tensor) -> Tensor:
        self._group.allreduce([x]).wait()
        return x

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        if not len(x):
            return x.new_empty(0, width)
        columns = -(-width // self.size)
        padded = F.pad(x, (0, columns - x.shape[1])).contiguous()
        shards = x.new_empty(self.size, *padded.shape)
        all_gather_into(self._group, shards, padded)
        return shards.transpose(0, 1).reshape(len(x), -1)[:, :width]

    def broadcast_from_first(self, numbers: list[int]) -> list[int]:
        return self._control.broadcast_from_first(numbers)

    def min_across_ranks(self, number: int) -> int:
        return self._control.min_across_ranks(number)

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Return every rank's bytes, in rank order; all must have the same length."""
        return self._control.all_gather_bytes(data)

    def allocate_peer_buffers(self, gpu: Gpu, config: ModelConfig) -> None:
        """Allocate `peer_buffers` for a model's decode steps if all ranks can use them.

        It stays None without peer access, with more than `MAX_WORLD_SIZE` ranks, and for rows that
        are no multiple of 16 bytes.
        """
        vocab_per_rank = -(-config.vocab_size // self.size)
        sizes = (config.hidden_size, vocab_per_rank, config.vocab_size)
        aligned = not any(size % 4 for size in sizes)
        usable = self.size <= MAX_WORLD_SIZE and aligned and self._has_peer_access()
        if not self.min_across_ranks(int(usable)):
            return
        row, logits = MAX_GEMV_ROWS * config.hidden_size, MAX_GEMV_ROWS * vocab_per_rank
        num_bytes = 4 * self.size * (3 * row + logits)
        self._memory = PeerMemory(gpu, num_bytes, self.rank, self.all_gather_bytes)
        embedding, attention, mlp = (self._memory.allocate(row) for _ in range(3))
        self.peer_buffers = PeerBuffers(
            embedding, attention, mlp, self._memory.allocate(logits), vocab_per_rank
        )

    def _has_peer_access(self) -> bool:
        """Return whether this GPU can access the memory of all other ranks' GPUs."""
        if not self.placement.is_single_host:
            return False
        first = (self._device.index or 0) - self.rank
        others = [first + other for other in range(self.size) if other != self.rank]
        try:
            access = [torch.cuda.can_device_access_peer(self._device, i) for i in others]
        except (RuntimeError, AssertionError) as error:
            raise DeviceError(f"cannot query peer access to GPUs {others}: {error}") from error
        return all(access)

    def close(self) -> None:
        """Disconnect from the other ranks, which must have finished the same operations."""
        if self._memory is not None:
            self._memory.close()
        self._group.abort()


def connect_groups(
    store: Any,
    rank: int,
    size: int,
    device: torch.device,
    timeout_s: float,
    placement: RankPlacement,
) -> tuple[GlooCommunicator, Any]:
    """Return a gloo communicator for data on the host and an NCCL process group for `device`."""
    torch.cuda.set_device(device)
    stores: Any = dist  # torch's stubs lack PrefixStore
    control_store = stores.PrefixStore("control", store)
    control = GlooCommunicator(control_store, rank, size, timeout_s, placement)
    return control, nccl_group(stores.PrefixStore("nccl", store), rank, size, timeout_s)
