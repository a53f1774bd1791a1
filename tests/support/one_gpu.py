"""Ranks that share one GPU, where NCCL refuses to connect them: gloo takes its place.

The GPU runs their kernels in turns, also those that wait for each other. Peer buffers and captured
steps are those of several GPUs; only collectives outside of them go through the host.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from swiftchat.engine.comm.communicator import GlooCommunicator, RankPlacement

# The first lines of the Python of each rank, for `inject_fault`.
CODE = f"""
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.support.one_gpu import share_the_gpu
share_the_gpu()
"""


class _Group:
    """What `GpuCommunicator` uses of an NCCL process group."""

    def __init__(self, control: GlooCommunicator) -> None:
        self._control = control

    def allreduce(self, tensors: list[Tensor]) -> "_Group":
        (x,) = tensors
        x.copy_(self._control.all_reduce(x.cpu()))
        return self

    def gather_into(self, gathered: Tensor, x: Tensor) -> None:
        own = x.contiguous().cpu().view(1, -1)
        found = self._control.all_gather(own, own.shape[1] * len(gathered))
        gathered.copy_(found.view(gathered.shape))

    def wait(self) -> None: ...
    def abort(self) -> None: ...


def _connect_groups(
    store: Any,
    rank: int,
    size: int,
    device: torch.device,
    timeout_s: float,
    placement: RankPlacement,
) -> tuple[GlooCommunicator, _Group]:
    torch.cuda.set_device(device)
    stores: Any = dist
    control_store = stores.PrefixStore("control", store)
    control = GlooCommunicator(control_store, rank, size, timeout_s, placement)
    return control, _Group(control)


def share_the_gpu() -> None:
    """Let all ranks of this process's engine use the first GPU; before it is loaded."""
    from swiftchat.engine.device import device

    find_device = device.find_device

    def find_shared(name: str, rank: int = 0) -> torch.device:
        return find_device(name)

    device.find_device = find_shared  # type: ignore[assignment]  # before others import it

    from swiftchat.engine.comm import gpu_communicator
    from swiftchat.engine.gpu.steps.prefill_graphs import PrefillGraphs
    from swiftchat.engine.ranks import auto_tp

    changed: Any = gpu_communicator
    changed.connect_groups = _connect_groups
    changed.all_gather_into = lambda group, gathered, x: group.gather_into(gathered, x)
    changed.GpuCommunicator._has_peer_access = lambda self: True
    # Collectives of prompts go through the host.
    changed = PrefillGraphs
    changed.can_capture = False
    changed = auto_tp
    changed._num_gpus = lambda first: 8
