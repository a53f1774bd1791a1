"""One model on several ranks: every rank's engine carries out the same calls in the same order.

Rank 0 has the connection to the terminal. It tells the others each call of its engine before it
makes it; schedules, draws and ends follow from the calls alone, and are the same everywhere. What
ranks need of each other within a call (sums, logits) passes between the devices.
"""

import functools
import os
import secrets
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Message, Tokens
from swiftchat.engine.comm.communicator import (
    Communicator,
    GlooCommunicator,
    RankPlacement,
    SingleRank,
)
from swiftchat.engine.comm.gpu_communicator import GpuCommunicator
from swiftchat.engine.comm.pipeline import GlooPipeline, GpuPipeline, Pipeline, SingleStage
from swiftchat.engine.device.device import device_error, find_device
from swiftchat.engine.device.driver import open_gpu, start_driver
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Outcome, Progress
from swiftchat.engine.ranks.supervisor import COMPLAINT_S, RankSupervisor
from swiftchat.errors import DeviceError, SwiftchatError

__all__ = ["SpmdEngine", "SpmdRank", "connect", "meet"]

_LOAD_S = 300.0  # that ranks may come one after the other to where they wait for all


def connect(config: EngineConfig, meeting: int, rank: int) -> tuple[Communicator, Pipeline]:
    """Meet the other ranks, on this machine and without an open port: of this stage, and of others.

    That is in the file with the descriptor `meeting`, inherited from rank 0, which is in no
    folder: it is gone when all ranks are, whatever ended them. It stays open: NCCL's own threads
    look into it later.
    """
    assert config.tp != "auto"  # `num_ranks` comes before
    stores: Any = dist  # whose stubs do not have them
    size = config.tp * config.pp
    store = stores.FileStore(f"/proc/self/fd/{meeting}", size)
    os.environ.update(NCCL_SOCKET_IFNAME="lo")  # what it listens on is this machine's alone
    return meet(config, store, rank, RankPlacement(rank, size))


def meet(
    config: EngineConfig, store: Any, rank: int, placement: RankPlacement
) -> tuple[Communicator, Pipeline]:
    """Meet the other ranks in a store: of this stage, and of others.

    Stages have ranks that follow each other. `DeviceError` if the others do not come.
    """
    assert config.tp != "auto"
    if config.device != "cpu":
        start_driver()
    device = find_device(config.device, placement.local_rank)
    if device.type == "cuda":
        open_gpu(device)
    stores: Any = dist
    stage, number = divmod(rank, config.tp)
    of_stage = stores.PrefixStore(f"stage {stage}", store)
    of_number = stores.PrefixStore(f"number {number}", store)
    ranks: Communicator = SingleRank(placement)
    stages: Pipeline = SingleStage()
    if device.type == "cpu":
        if config.tp > 1:
            ranks = GlooCommunicator(of_stage, number, config.tp, _LOAD_S, placement)
        if config.pp > 1:
            stages = GlooPipeline(of_number, stage, config.pp, _LOAD_S, placement)
    else:
        os.environ.update(NCCL_NVLS_ENABLE="0")  # NVLink multicast stays off
        if config.tp > 1:
            ranks = GpuCommunicator(of_stage, number, config.tp, device, _LOAD_S, placement)
        if config.pp > 1:
            stages = GpuPipeline(of_number, stage, config.pp, device, _LOAD_S, placement)
    stages.gather_from_stages(ranks.min_across_ranks(0))  # all are here
    return ranks, stages


class SpmdRank:
    """A rank's engine, and what came of it so far, to be compared with the other ranks'."""

    def __init__(
        self,
        path: Path,
        config: EngineConfig,
        on_progress: Progress,
        cubins: Path | None,
        ranks: Communicator,
        stages: Pipeline,
    ) -> None:
        self.engine = build_engine(path, config, on_progress, cubins, ranks, stages)
        self.digest = 0

    def repeat(self, call: Message) -> list[Outcome]:
        """Make a call that rank 0 makes; raises `DeviceError` if the ranks have come apart."""
        match call["type"]:
            case "add":
                params = SamplingParams.from_wire(call["params"])
                self.engine.add(call["id"], call["prompt"], params)
            case "cancel":
                self.engine.cancel(call["id"])
            case "step":
                if call["digest"] != self.digest:
                    raise DeviceError("other tokens were chosen here than on rank 0")
                return self._step()
        return []

    def _step(self) -> list[Outcome]:
        outcomes = self.engine.step()
        for generation_id, event in outcomes:
            if isinstance(event, Tokens):
                self.digest = zlib.crc32(repr((generation_id, event.ids)).encode(), self.digest)
        return outcomes


class SpmdEngine:
    """Rank 0's engine, used like `Engine`; the other ranks are `followers`.

    They are as many as the config has ranks beside this one, and have been told nothing yet. They
    are ended when something fails here, and otherwise end with this process. `join` meets them,
    if they are not this machine's.
    """

    def __init__(
        self,
        path: Path,
        config: EngineConfig,
        cubins: Path | None,
        followers: RankSupervisor,
        join: Callable[[], tuple[Communicator, Pipeline]] | None = None,
    ) -> None:
        self._followers = followers
        with self._in_company():
            followers.tell(
                {
                    "type": "load",
                    "path": str(path),
                    "config": config.to_wire(),
                    "cubins": str(cubins) if cubins else None,
                    **followers.invitation,
                }
            )
            met = join() if join else connect(config, followers.invitation["meeting"], 0)
            report = functools.partial(followers.report, 0)
            self._repeater = SpmdRank(path, config, report, cubins, *met)
            followers.wait_ready()
        self.info = self._repeater.engine.info

    @property
    def has_work(self) -> bool:
        return self._repeater.engine.has_work

    def add(self, generation_id: int, prompt: list[int], params: SamplingParams) -> None:
        """As `Engine.add`; a seed nobody chose is drawn here, for all ranks."""
        self._repeater.engine.check(prompt)
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(32))
        self._together(
            {"type": "add", "id": generation_id, "prompt": prompt, "params": params.to_wire()}
        )

    def cancel(self, generation_id: int) -> None:
        self._together({"type": "cancel", "id": generation_id})

    def step(self) -> list[Outcome]:
        return self._together({"type": "step", "digest": self._repeater.digest})

    def abort_all(self, error: SwiftchatError) -> list[Outcome]:
        """Ranks of which one has failed have come apart: this raises the error."""
        raise error

    def stats(self, measure: bool = False) -> dict[str, Any]:
        return self._repeater.engine.stats(measure)

    def _together(self, call: Message) -> list[Outcome]:
        with self._in_company():
            self._followers.tell(call)
            return self._repeater.repeat(call)

    @contextmanager
    def _in_company(self) -> Iterator[None]:
        """Around what all ranks do: what fails on rank 0 ends them, and is raised as an error."""
        try:
            try:
                yield
            except (MemoryError, RuntimeError) as error:  # torch's
                found = device_error(error)
                raise type(found)(f"rank 0: {found.message}", found.hint) from error
        except SwiftchatError as error:
            if type(error) is DeviceError:
                # Perhaps another rank failed first; then the watcher tells that one meanwhile.
                time.sleep(2 * COMPLAINT_S)
            self._followers.kill()
            raise
