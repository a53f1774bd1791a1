"""Sums over ranks in captured steps: kernels send parts to the other ranks' peer buffers."""

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.comm import all_gather, all_reduce
from swiftchat.cuda.ops.linear.layout import MAX_GEMV_ROWS
from swiftchat.cuda.peer_memory import PeerBuffer
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.comm.gpu_communicator import GpuCommunicator, PeerBuffers
from swiftchat.engine.gpu.fused.matmul import Matmul
from swiftchat.engine.gpu.fused.norm import Embedding, Stream
from swiftchat.engine.gpu.fused.pending import Pending, computed


class FusedRanks(Communicator):
    """The `Communicator` of a captured step; sums of branch outputs are pending.

    Without peer buffers, and for what is not [n, hidden_size], it is `ranks`.
    """

    def __init__(self, gpu: Gpu, ranks: Communicator, hidden_size: int) -> None:
        self.size, self.rank, self.placement = ranks.size, ranks.rank, ranks.placement
        self._gpu, self._ranks, self._hidden_size = gpu, ranks, hidden_size
        self._buffers = ranks.peer_buffers if isinstance(ranks, GpuCommunicator) else None
        self._num_rows, self._num_exchanges = 0, 0

    @property
    def sends(self) -> bool:
        """Whether there is one rank only, or kernels send the parts of a few rows."""
        return self.size == 1 or self._buffers is not None

    def begin(self, num_rows: int) -> None:
        """Begin a step."""
        self._num_rows, self._num_exchanges = num_rows, 0

    @property
    def _step_buffers(self) -> PeerBuffers | None:
        """The buffers, if they are large enough for a step's rows."""
        return self._buffers if self._num_rows <= MAX_GEMV_ROWS else None

    def all_reduce(self, x: Tensor) -> Tensor:
        if self.size == 1:
            return x
        if self._step_buffers is not None:
            if isinstance(x, Stream) and isinstance(x.ending, Embedding):
                x.ending.sum_over_ranks(self.write_sum)
                return x
            if isinstance(x, Pending) or x.shape == (self._num_rows, self._hidden_size):
                return RankSum(self, x)
        return self._ranks.all_reduce(computed(x))

    def add_sum(self, total: Tensor, x: Tensor) -> None:
        """Add the sum of all ranks' x to `total`, fp32 [n, hidden_size], in place."""
        if isinstance(x, Matmul) and x.adds:
            buffer = self._next_buffer()
            x.send(buffer)
            all_reduce(self._gpu, total, buffer)
        else:
            part = computed(x)
            all_reduce(self._gpu, total, self._next_buffer(), part)

    def write_sum(self, total: Tensor, part: Tensor) -> None:
        """Write the sum of all ranks' parts to `total`."""
        all_reduce(self._gpu, total, self._next_buffer(), part, accumulate=False)

    def _next_buffer(self) -> PeerBuffer:
        """Return another buffer than that of the last exchange, also for the first of a step."""
        buffers, number = self._buffers, self._num_exchanges
        assert buffers is not None
        self._num_exchanges += 1
        if number == 0:
            return buffers.embedding
        return buffers.attention if number % 2 else buffers.mlp

    def write_logits(self, logits: Tensor, out: Tensor) -> None:
        """Write the logits of all ranks to `out` fp32 [n, vocab_size], given those of this one."""
        buffers = self._step_buffers
        fits = isinstance(logits, Matmul) and len(logits.matrices) == 1 and logits.fits()
        if isinstance(logits, Matmul) and fits and self.size == 1:
            logits.write(out)
        elif isinstance(logits, Matmul) and fits and buffers is not None:
            logits.send(buffers.logits)
            all_gather(self._gpu, out, buffers.logits, buffers.vocab_per_rank)
        else:
            out.copy_(self.all_gather(logits, out.shape[1]))

    def all_gather(self, x: Tensor, width: int) -> Tensor:
        return self._ranks.all_gather(computed(x), width)

    def broadcast_from_first(self, numbers: list[int]) -> list[int]:
        return self._ranks.broadcast_from_first(numbers)

    def min_across_ranks(self, number: int) -> int:
        return self._ranks.min_across_ranks(number)

    def close(self) -> None:
        self._ranks.close()


class RankSum(Pending):
    """The sum of all ranks' x, fp32 [n, hidden_size], through peer buffers."""

    def __init__(self, ranks: FusedRanks, x: Tensor) -> None:
        self._computed, self._ranks, self._x = None, ranks, x

    def compute(self) -> Tensor:
        part = computed(self._x)
        total = part.new_empty(part.shape, dtype=torch.float32)
        self._ranks.write_sum(total, part)
        return total

    @property
    def adds(self) -> bool:
        return self.is_pending

    def add_to(self, total: Tensor) -> None:
        self._ranks.add_sum(total, self._x)
