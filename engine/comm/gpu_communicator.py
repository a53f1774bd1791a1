"""What ranks on GPUs tell each other: through each other's memory, or through NCCL."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear_layout import MAX_GEMV_ROWS
from swiftchat.cuda.peer_memory import MAX_WORLD_SIZE, PeerBuffer, PeerMemory
from swiftchat.engine.comm.communicator import GlooCommunicator, RankPlacement
from swiftchat.errors import DeviceError
from swiftchat.weights.architectures.config import ModelConfig


@dataclass(frozen=True)
class PeerBuffers:
    """Where the parts of a decode step arrive, for up to 16 lanes.

    Each exchange of a step uses another than the one before it, as `all_reduce` asks for.
    """

    embedding: PeerBuffer
    attention: PeerBuffer
    mlp: PeerBuffer
    logits: PeerBuffer
    vocab_per_rank: int  # columns of the logits that every rank but the last has


class GpuCommunicator:
    """The ranks of one model, each on a GPU, as `engine.comm.communicator.Communicator`.

    `store` and `seat` as for `GlooCommunicator`. Prefill uses NCCL. The few rows of a decode step
    use peer buffers, after `open_inboxes` has allocated them, if the GPUs have peer access.
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
        torch.cuda.set_device(device)
        torch_stores: Any = dist  # whose stubs do not have them
        prefixed = torch_stores.PrefixStore
        self._control = GlooCommunicator(
            prefixed("control", store), rank, size, timeout_s, placement
        )
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = timedelta(seconds=timeout_s)
        self._group = nccl(prefixed("nccl", store), rank, size, options)
        self.all_reduce(torch.zeros(1, device=device))  # now, while all wait and the store is there

    def all_reduce(self, x: Tensor) -> Tensor:
        self._group.allreduce([x]).wait()
        return x

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        if not len(x):
            return x.new_empty(0, width)
        each = -(-width // self.size)
        mine = F.pad(x, (0, each - x.shape[1])).contiguous()
        parts = x.new_empty(self.size, *mine.shape)
        self._group._allgather_base(parts, mine).wait()
        return parts.transpose(0, 1).reshape(len(x), -1)[:, :width]

    def broadcast_from_first(self, number: int) -> int:
        return self._control.broadcast_from_first(number)

    def min_across_ranks(self, number: int) -> int:
        return self._control.min_across_ranks(number)

    def all_gather_bytes(self, mine: bytes) -> list[bytes]:
        return self._control.all_gather_bytes(mine)

    def allocate_peer_buffers(self, gpu: Gpu, config: ModelConfig) -> None:
        """Make the inboxes of a model's decode steps; without, all goes through NCCL.

        That is so where GPUs do not reach each other, or rows are no multiples of 16 bytes.
        """
        each = -(-config.vocab_size // self.size)
        odd = config.hidden_size % 4 or each % 4 or config.vocab_size % 4
        able = self.size <= MAX_WORLD_SIZE and not odd and self._all_reach_each_other()
        if not self.min_across_ranks(int(able)):
            return
        row, logits = MAX_GEMV_ROWS * config.hidden_size, MAX_GEMV_ROWS * each
        num_bytes = 4 * self.size * (3 * row + logits)
        self._memory = PeerMemory(gpu, num_bytes, self.rank, self.all_gather_bytes)
        embedding, attention, ffn = (self._memory.allocate(row) for _ in range(3))
        box = self._memory.allocate(logits)
        self.peer_buffers = PeerBuffers(embedding, attention, ffn, box, each)

    def _all_reach_each_other(self) -> bool:
        if not self.placement.is_single_host:
            return False
        first = (self._device.index or 0) - self.rank
        others = [first + other for other in range(self.size) if other != self.rank]
        try:
            reach = [torch.cuda.can_device_access_peer(self._device, i) for i in others]
        except (RuntimeError, AssertionError) as error:
            raise DeviceError(f"GPUs {others} cannot be asked: {error}") from error
        return all(reach)

    def close(self) -> None:
        """Let go of the other ranks, which have done what this one has."""
        if self._memory is not None:
            self._memory.close()
        self._group.abort()
