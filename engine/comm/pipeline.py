"""Communication between the pipeline stages of a model: the residual stream and the tokens.

Each stage computes consecutive layers (`weights.parallel.pipeline`) on one or several
tensor-parallel ranks (`engine.comm.communicator`). A rank communicates with the ranks of the same
tensor-parallel number in other stages. All ranks of a stage hold the same residual stream.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from swiftchat.engine.comm.communicator import GlooCommunicator, RankPlacement
from swiftchat.engine.comm.gpu_communicator import connect_groups


class Pipeline(Protocol):
    """Communication of one rank with the other pipeline stages.

    All stages call the same collective methods in the same order; each `send` is matched by the
    next stage's `receive`. Methods raise `DeviceError` if the connection to a stage breaks.
    """

    size: int
    stage: int

    @property
    def is_first(self) -> bool: ...
    @property
    def is_last(self) -> bool: ...
    def receive(self, num_tokens: int, hidden_size: int) -> Tensor:
        """Return the previous stage's residual stream: fp32 [num_tokens, hidden_size]."""

    def send(self, x: Tensor) -> None:
        """Send the residual stream to the next stage and wait until it is being received.

        A stage therefore is at most one batch ahead of the next one.
        """

    def broadcast_from_last(self, x: Tensor) -> Tensor:
        """Return the last stage's x; other stages pass a tensor of the same shape and dtype.

        The result may be on the CPU.
        """

    def gather_from_stages(self, number: int) -> list[int]:
        """Return every stage's number, in stage order."""

    def close(self) -> None:
        """Disconnect from the other stages; no method may be called afterwards."""


class SingleStage:
    """The pipeline of a model with one stage."""

    size, stage = 1, 0
    is_first = is_last = True

    def receive(self, num_tokens: int, hidden_size: int) -> Tensor:
        raise RuntimeError("the only stage has no previous stage")

    def send(self, x: Tensor) -> None:
        raise RuntimeError("the only stage has no next stage")

    def broadcast_from_last(self, x: Tensor) -> Tensor:
        return x

    def gather_from_stages(self, number: int) -> list[int]:
        return [number]

    def close(self) -> None:
        return


class GlooPipeline:
    """A pipeline for stages on CPUs; parameters and errors as for `GlooCommunicator`."""

    def __init__(
        self,
        store: Any,
        stage: int,
        size: int,
        timeout_s: float,
        placement: RankPlacement | None = None,
    ) -> None:
        self.size, self.stage = size, stage
        self.is_first, self.is_last = stage == 0, stage == size - 1
        self._group = GlooCommunicator(store, stage, size, timeout_s, placement)

    def receive(self, num_tokens: int, hidden_size: int) -> Tensor:
        return self._group.receive(torch.empty(num_tokens, hidden_size), self.stage - 1)

    def send(self, x: Tensor) -> None:
        self._group.send(x, self.stage + 1)

    def broadcast_from_last(self, x: Tensor) -> Tensor:
        return self._group.broadcast(x, self.size - 1)

    def gather_from_stages(self, number: int) -> list[int]:
        return self._group.all_gather_int(number)

    def close(self) -> None:
        self._group.close()


class GpuPipeline(GlooPipeline):
    """A pipeline for stages on GPUs: NCCL sends the residual stream, gloo everything else."""

    def __init__(
        self,
        store: Any,
        stage: int,
        size: int,
        device: torch.device,
        timeout_s: float,
        placement: RankPlacement,
    ) -> None:
        self.size, self.stage = size, stage
        self.is_first, self.is_last = stage == 0, stage == size - 1
        self._device = device
        self._group, self._nccl = connect_groups(store, stage, size, device, timeout_s, placement)
        # NCCL connects two stages at their first send: do it while all stages wait.
        if not self.is_first:
            self.receive(1, 1)
        if not self.is_last:
            self.send(torch.zeros(1, 1, device=device))

    def receive(self, num_tokens: int, hidden_size: int) -> Tensor:
        x = torch.empty(num_tokens, hidden_size, device=self._device)
        self._nccl.recv([x], self.stage - 1, 0).wait()
        return x

    def send(self, x: Tensor) -> None:
        self._nccl.send([x], self.stage + 1, 0).wait()
        # As with gloo: otherwise this process runs ahead of the GPUs by a whole prompt.
        torch.cuda.current_stream(self._device).synchronize()

    def broadcast_from_last(self, x: Tensor) -> Tensor:
        return super().broadcast_from_last(x.cpu())

    def close(self) -> None:
        super().close()
        self._nccl.abort()
