"""One model on several ranks: every rank's engine carries out the same calls in the same order.

Rank 0 has the connection to the terminal. It tells the others each call of its engine before it
makes it; schedules, draws and ends follow from the calls alone, and are the same everywhere. What
ranks need of each other within a call (sums, logits) passes between the devices.
"""

import os
import secrets
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from swiftchat.engine.device import find_device
from swiftchat.engine.engine import Engine, Outcome, Progress
from swiftchat.engine.followers import Followers
from swiftchat.engine.gpu_ranks import GpuRanks
from swiftchat.engine.params import EngineConfig, SamplingParams
from swiftchat.engine.protocol import Message, Tokens
from swiftchat.engine.ranks import GlooRanks, Ranks
from swiftchat.errors import DeviceError, SwiftchatError

__all__ = ["LockstepEngine", "Repeater", "connect"]

_LOAD_S = 300.0  # that ranks may come one after the other to where they wait for all


def connect(config: EngineConfig, store: Path, rank: int) -> Ranks:
    """Meet the other ranks through the file `store`, on this machine and without an open port.

    The file has done its work when this returns.
    """
    device = find_device(config.device, rank)
    stores: Any = dist  # whose stubs do not have them
    meeting = stores.FileStore(str(store), config.tp)
    ranks: Ranks
    if device.type == "cpu":
        ranks = GlooRanks(meeting, rank, config.tp, _LOAD_S)
    else:
        # NVLink multicast stays off, and what NCCL listens on is this machine's alone.
        os.environ.update(NCCL_NVLS_ENABLE="0", NCCL_SOCKET_IFNAME="lo")
        ranks = GpuRanks(meeting, rank, config.tp, device, _LOAD_S)
    ranks.least(0)  # all are here
    return ranks


class Repeater:
    """A rank's engine, and what came of it so far, to be compared with the other ranks'."""

    def __init__(self, path: Path, config: EngineConfig, on_progress: Progress,
                 cubins: Path | None, ranks: Ranks) -> None:  # fmt: skip
        self.engine = Engine(path, config, on_progress, cubins, ranks)
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
                    raise DeviceError("the ranks have chosen different tokens")
                return self._step()
        return []

    def _step(self) -> list[Outcome]:
        outcomes = self.engine.step()
        for generation_id, event in outcomes:
            if isinstance(event, Tokens):
                self.digest = zlib.crc32(repr((generation_id, event.ids)).encode(), self.digest)
        return outcomes


class LockstepEngine:
    """Rank 0's engine, used like `Engine`; the other ranks are processes that it starts and ends.

    `on_loss` is called, on another thread, when a rank fails or dies: nothing can be computed
    from then on, and this rank may wait for that one for ever.
    """

    def __init__(
        self,
        path: Path,
        config: EngineConfig,
        on_progress: Progress,
        cubins: Path | None,
        on_loss: Callable[[SwiftchatError], None],
    ) -> None:
        slowest = _Slowest(on_progress)
        self._followers = Followers(config.tp, on_loss, slowest.report)
        with tempfile.TemporaryDirectory(prefix="swiftchat-") as folder:
            store = Path(folder) / "store"
            self._followers.tell(
                {
                    "type": "load",
                    "path": str(path),
                    "config": config.to_wire(),
                    "store": str(store),
                    "cubins": str(cubins) if cubins else None,
                }
            )
            ranks = connect(config, store, 0)
        self._repeater = Repeater(
            path, config, lambda *progress: slowest.report(0, *progress), cubins, ranks
        )
        self.info = self._repeater.engine.info

    @property
    def has_work(self) -> bool:
        return self._repeater.engine.has_work

    @property
    def pids(self) -> list[int]:
        """The processes of the other ranks."""
        return self._followers.pids

    def add(self, generation_id: int, prompt: list[int], params: SamplingParams) -> None:
        """As `Engine.add`; a seed nobody chose is drawn here, for all ranks."""
        self._repeater.engine.check(prompt)
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(32))
        self._together({"type": "add", "id": generation_id, "prompt": prompt,
                        "params": params.to_wire()})  # fmt: skip

    def cancel(self, generation_id: int) -> None:
        self._together({"type": "cancel", "id": generation_id})

    def step(self) -> list[Outcome]:
        return self._together({"type": "step", "digest": self._repeater.digest})

    def abort_all(self, error: SwiftchatError) -> list[Outcome]:
        """Ranks of which one has failed have come apart: this raises the error."""
        raise error

    def stats(self, measure: bool = False) -> dict[str, Any]:
        return self._repeater.engine.stats(measure)

    def close(self) -> None:
        """End the other ranks."""
        self._followers.close()

    def _together(self, call: Message) -> list[Outcome]:
        self._followers.tell(call)
        return self._repeater.repeat(call)


class _Slowest:
    """Of all ranks' progress, tells that of the one that is furthest behind."""

    def __init__(self, on_progress: Progress) -> None:
        self._on_progress = on_progress
        self._shares: dict[str, dict[int, float]] = {}

    def report(self, rank: int, label: str, done: int, total: int) -> None:
        shares = self._shares.setdefault(label, {})
        shares[rank] = done / max(1, total)
        if rank == min(shares, key=lambda other: shares[other]):
            self._on_progress(f"{label} (rank {rank})", done, total)
