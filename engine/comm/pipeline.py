"""What the stages of one model tell each other: the residual stream, and what comes of the last.

Each stage computes consecutive layers (`weights.parallel.pipeline`) and may itself have several
ranks (`engine.comm.communicator`). A rank exchanges data with the ranks of the same TP rank in the
other stages; all ranks of a stage hold the same residual stream.
"""

from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from swiftchat.engine.comm.communicator import GlooCommunicator, RankPlacement


class Pipeline(Protocol):
    """The stages of one model, seen from a rank of one of them.

    All make the same calls in the same order, but that one receives what the one before it sends.
    Raises `DeviceError` where another is gone, if that can be noticed.
    """

    size: int
    stage: int

    @property
    def is_first(self) -> bool: ...
    @property
    def is_last(self) -> bool: ...
    def receive(self, num_tokens: int, width: int) -> Tensor:
        """The stream that the stage before sends: fp32 [num_tokens, width], on the device."""

    def send(self, x: Tensor) -> None:
        """Send the stream to the next stage, which has to receive just as much.

        Returns when that stage has begun to receive: so each is ahead of the next by one batch.
        """

    def broadcast_from_last(self, x: Tensor) -> Tensor:
        """The last stage's x, on the CPU if it travels; of others only shape and dtype matter."""

    def gather_from_stages(self, number: int) -> list[int]:
        """Every stage's number, the first one's first."""

    def close(self) -> None:
        """Let go of the others; nothing may be called after."""


class SingleStage:
    """All layers: nobody to wait for."""

    size, stage = 1, 0
    is_first = is_last = True

    def receive(self, num_tokens: int, width: int) -> Tensor:
        raise RuntimeError("there is no stage before the only one")

    def send(self, x: Tensor) -> None:
        raise RuntimeError("there is no stage after the only one")

    def broadcast_from_last(self, x: Tensor) -> Tensor:
        return x

    def gather_from_stages(self, number: int) -> list[int]:
        return [number]

    def close(self) -> None:
        return


class GlooPipeline:
    """Stages on CPUs; `store`, `seat` and errors as for `GlooCommunicator`."""

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

    def receive(self, num_tokens: int, width: int) -> Tensor:
        return self._group.receive(torch.empty(num_tokens, width), self.stage - 1)

    def send(self, x: Tensor) -> None:
        self._group.send(x, self.stage + 1)

    def broadcast_from_last(self, x: Tensor) -> Tensor:
        return self._group.broadcast(x, self.size - 1)

    def gather_from_stages(self, number: int) -> list[int]:
        return self._group.all_gather_int(number)

    def close(self) -> None:
        self._group.close()


class GpuPipeline:
    """Stages on GPUs, which send the stream through NCCL; otherwise as `GlooPipeline`."""

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
        self._device = device
        torch.cuda.set_device(device)
        torch_stores: Any = dist  # whose stubs do not have them
        prefixed = torch_stores.PrefixStore
        self._control = GlooPipeline(prefixed("control", store), stage, size, timeout_s, placement)
        self.is_first, self.is_last = self._control.is_first, self._control.is_last
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = timedelta(seconds=timeout_s)
        self._group = nccl(prefixed("nccl", store), stage, size, options)
        # NCCL connects two stages when they first send: now, while all wait.
        if not self.is_first:
            self.receive(1, 1)
        if not self.is_last:
            self.send(torch.zeros(1, 1, device=device))

    def receive(self, num_tokens: int, width: int) -> Tensor:
        x = torch.empty(num_tokens, width, device=self._device)
        self._group.recv([x], self.stage - 1, 0).wait()
        return x

    def send(self, x: Tensor) -> None:
        self._group.send([x], self.stage + 1, 0).wait()
        # As gloo does: else this process would run ahead of the GPUs by a whole prompt.
        torch.cuda.current_stream(self._device).synchronize()

    def broadcast_from_last(self, x: Tensor) -> Tensor:
        return self._control.broadcast_from_last(x.cpu())

    def gather_from_stages(self, number: int) -> list[int]:
        return self._control.gather_from_stages(number)

    def close(self) -> None:
        self._control.close()
        self._group.abort()
