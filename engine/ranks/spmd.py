"""SPMD execution of one model on several ranks.

Every rank has an engine and executes the same calls in the same order. Rank 0 has the connection
to the terminal and sends each call to the other ranks before it executes the call itself.
Scheduling, sampling and the ends of generations depend on the calls alone and are equal on all
ranks. Within a call, ranks exchange tensors through `engine.comm`.
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
from swiftchat.engine.api.protocol import OnProgress, Tokens
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.api.vocabulary import ConstraintSpec
from swiftchat.engine.api.wire import Message
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
from swiftchat.engine.generation.generations import Outcome
from swiftchat.engine.ranks.supervisor import ERROR_GRACE_S, RankSupervisor
from swiftchat.errors import DeviceError, SwiftchatError

_COLLECTIVE_TIMEOUT_S = 300.0  # ranks may load at different speeds before they synchronize

Groups = tuple[Communicator, Pipeline]


def join_on_same_host(config: EngineConfig, rendezvous_fd: int, rank: int) -> Groups:
    """Connect to the other ranks, all on this machine, and return the communicators.

    The ranks exchange addresses through the anonymous file `rendezvous_fd`, inherited from rank
    0, which needs no open port and disappears with the last rank. It stays open because NCCL's
    threads read it later.
    """
    assert config.tp != "auto"  # `resolve_tp` has replaced it
    stores: Any = dist  # torch's stubs lack FileStore
    size = config.tp * config.pp
    store = stores.FileStore(f"/proc/self/fd/{rendezvous_fd}", size)
    os.environ.update(NCCL_SOCKET_IFNAME="lo")  # listen on loopback only
    return join_ranks(config, store, rank, RankPlacement(rank, size))


def join_ranks(config: EngineConfig, store: Any, rank: int, placement: RankPlacement) -> Groups:
    """Connect to the other ranks through a store and return the communicators.

    The ranks of a stage have consecutive numbers. Raises `DeviceError` if ranks do not join.
    """
    assert config.tp != "auto"
    if config.device != "cpu":
        start_driver()
    device = find_device(config.device, placement.local_rank)
    if device.type == "cuda":
        open_gpu(device.index or 0)
    stores: Any = dist
    stage, tp_rank = divmod(rank, config.tp)
    stage_store = stores.PrefixStore(f"stage {stage}", store)
    pipeline_store = stores.PrefixStore(f"number {tp_rank}", store)
    communicator: Communicator = SingleRank(placement)
    pipeline: Pipeline = SingleStage()
    tp, pp, timeout_s = config.tp, config.pp, _COLLECTIVE_TIMEOUT_S
    if device.type == "cpu":
        if tp > 1:
            communicator = GlooCommunicator(stage_store, tp_rank, tp, timeout_s, placement)
        if pp > 1:
            pipeline = GlooPipeline(pipeline_store, stage, pp, timeout_s, placement)
    else:
        os.environ.update(NCCL_NVLS_ENABLE="0")  # NVLink multicast stays off
        if tp > 1:
            communicator = GpuCommunicator(stage_store, tp_rank, tp, device, timeout_s, placement)
        if pp > 1:
            pipeline = GpuPipeline(pipeline_store, stage, pp, device, timeout_s, placement)
    pipeline.gather_from_stages(communicator.min_across_ranks(0))  # a barrier across all ranks
    return communicator, pipeline


class SpmdRank:
    """The engine of one rank, with a checksum of its outcomes to compare with other ranks."""

    def __init__(
        self,
        path: Path,
        config: EngineConfig,
        on_progress: OnProgress,
        cubins: Path | None,
        communicator: Communicator,
        pipeline: Pipeline,
    ) -> None:
        self.engine = build_engine(path, config, on_progress, cubins, communicator, pipeline)
        self.digest = 0

    def execute(self, call: Message) -> list[Outcome]:
        """Execute a call of rank 0; raises `DeviceError` if the ranks have diverged.

        A request that all ranks refuse, because one of them could not load its adapters, has its
        error as outcome.
        """
        match call["type"]:
            case "add":
                params = SamplingParams.from_wire(call["params"])
                wire = call["constraint"]
                constraint = None if wire is None else ConstraintSpec.from_wire(wire)
                tuned = call["tuning"]
                tuning = None if tuned is None else Tuning.from_wire(tuned)
                try:
                    self.engine.add(call["id"], call["prompt"], params, constraint, tuning)
                except SwiftchatError as error:
                    if type(error) is DeviceError:  # a lost connection, not a refusal
                        raise
                    return [(call["id"], error)]
            case "cancel":
                self.engine.cancel(call["id"])
            case "step":
                if call["digest"] != self.digest:
                    raise DeviceError("sampled other tokens than rank 0: the ranks have diverged")
                self.limit_tokens = call["limit_tokens"]
                return self._step()
            case "prepare":
                self.engine.prepare()
        return []

    @property
    def limit_tokens(self) -> int | None:
        """The limit of a chunk: each rank measures durations, but that of rank 0 holds for all."""
        limit = self.engine.scheduler.limit
        return None if limit is None else limit.tokens

    @limit_tokens.setter
    def limit_tokens(self, tokens: int | None) -> None:
        if self.engine.scheduler.limit is not None and tokens is not None:
            self.engine.scheduler.limit.tokens = tokens

    def _step(self) -> list[Outcome]:
        outcomes = self.engine.step()
        for generation_id, event in outcomes:
            if isinstance(event, Tokens):
                self.digest = zlib.crc32(repr((generation_id, event.ids)).encode(), self.digest)
        return outcomes


class SpmdEngine:
    """Rank 0's engine, with the interface of `Engine`.

    `supervisor` has all other ranks of the config, without any command sent yet. They are killed
    when rank 0 fails and otherwise exit with this process. `join` returns the communicators;
    by default all ranks are on this machine.
    """

    def __init__(
        self,
        path: Path,
        config: EngineConfig,
        cubins: Path | None,
        supervisor: RankSupervisor,
        join: Callable[[], Groups] | None = None,
    ) -> None:
        self._supervisor = supervisor
        with self._kill_ranks_on_error():
            supervisor.send(
                {
                    "type": "load",
                    "path": str(path),
                    "config": config.to_wire(),
                    "cubins": str(cubins) if cubins else None,
                    **supervisor.rendezvous,
                }
            )
            if join is None:
                groups = join_on_same_host(config, supervisor.rendezvous["rendezvous_fd"], 0)
            else:
                groups = join()
            on_progress = functools.partial(supervisor.report_progress, 0)
            self._rank = SpmdRank(path, config, on_progress, cubins, *groups)
            supervisor.wait_ready()
        self.info = self._rank.engine.info

    @property
    def has_work(self) -> bool:
        return self._rank.engine.has_work

    def add(
        self,
        generation_id: int,
        prompt: list[int],
        params: SamplingParams,
        constraint: ConstraintSpec | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """Add a generation on all ranks; a seed of None is replaced by one for all ranks."""
        # An error here leaves the other ranks as they are.
        self._rank.engine.check(prompt, params, constraint, tuning)
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(32))
        outcomes = self._execute(
            {
                "type": "add",
                "id": generation_id,
                "prompt": prompt,
                "params": params.to_wire(),
                "constraint": None if constraint is None else constraint.to_wire(),
                "tuning": None if tuning is None else tuning.to_wire(),
            }
        )
        for _, error in outcomes:
            assert isinstance(error, SwiftchatError)
            raise error

    def cancel(self, generation_id: int) -> None:
        self._execute({"type": "cancel", "id": generation_id})

    def step(self) -> list[Outcome]:
        limit_tokens = self._rank.limit_tokens
        return self._execute(
            {"type": "step", "digest": self._rank.digest, "limit_tokens": limit_tokens}
        )

    @property
    def has_unsaved(self) -> bool:
        return self._rank.engine.has_unsaved

    @property
    def can_prepare(self) -> bool:
        return self._rank.engine.can_prepare

    def prepare(self) -> None:
        """As `Engine.prepare`, on all ranks."""
        self._execute({"type": "prepare"})

    def abort_all(self, error: SwiftchatError) -> list[Outcome]:
        """Raise the error: after a failure on one rank the ranks have diverged."""
        raise error

    def stats(self, measure: bool = False) -> dict[str, Any]:
        return self._rank.engine.stats(measure)

    def _execute(self, call: Message) -> list[Outcome]:
        with self._kill_ranks_on_error():
            self._supervisor.send(call)
            return self._rank.execute(call)

    @contextmanager
    def _kill_ranks_on_error(self) -> Iterator[None]:
        """Kill all ranks when rank 0 fails, and raise the failure as a `SwiftchatError`."""
        try:
            try:
                yield
            except (MemoryError, RuntimeError) as error:  # raised by torch
                found = device_error(error)
                raise type(found)(f"rank 0: {found.message}", found.hint) from error
        except SwiftchatError as error:
            if type(error) is DeviceError:
                # Perhaps another rank failed first; the supervisor reports that meanwhile.
                time.sleep(2 * ERROR_GRACE_S)
            self._supervisor.kill()
            raise
