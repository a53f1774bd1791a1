"""An engine that terminals attach to: one process by itself, or a rank of several, on any hosts.

    python -m swiftchat.engine.worker MODEL
    torchrun --nnodes 2 --nproc-per-node 4 … -m swiftchat.engine.worker MODEL

Rank 0 listens for terminals. All end when it does, and when any of them is lost.
"""

import argparse
import contextlib
import hashlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import platformdirs
import psutil

from swiftchat.engine.api import protocol
from swiftchat.engine.api.address import Address
from swiftchat.engine.api.model_files import text_files
from swiftchat.engine.api.params import DTYPES, EngineConfig
from swiftchat.engine.api.protocol import Message
from swiftchat.engine.ranks.auto_tp import num_ranks
from swiftchat.engine.ranks.launch import Launch
from swiftchat.engine.ranks.main import RankMain
from swiftchat.engine.ranks.supervisor import OnProgress, RankSupervisor
from swiftchat.engine.server.listener import Listener
from swiftchat.engine.server.serve import EngineServer
from swiftchat.errors import BadModelFile, DeviceError, SwiftchatError, UsageError
from swiftchat.weights.store import default_store

if TYPE_CHECKING:
    from swiftchat.engine.comm.communicator import RankPlacement
    from swiftchat.engine.ranks.spmd import SpmdRank
    from swiftchat.engine.server.serve import AnyEngine

# What rank 0 takes to tell terminals of a signal that all ranks get, before the others end of it.
_SIGNAL_S = 1.0


def serve(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Be the rank that the environment says until a signal, rank 0's end, or a failure."""
    asked = _parser().parse_args(arguments)
    who = "engine"
    try:
        launch = Launch.from_environment(environ)
        who = launch.name if launch.size > 1 else who
        if launch.rank == 0:
            _RankZero(launch, asked).run()
        else:
            _follow(launch, asked)
    except SwiftchatError as error:
        _complain(who, error)
        os._exit(error.exit_code)


class _RankZero:
    """Rank 0, which may be the only one."""

    def __init__(self, launch: Launch, asked: argparse.Namespace) -> None:
        self._launch, self._path = launch, _model(asked)
        self._config = _config(asked, launch.size)
        num_ranks(self._config, self._path)  # can the model be divided so?
        self._service, self._ending = EngineServer(), threading.Lock()
        self._listener = Listener(
            Address.parse(asked.listen),
            asked.token_file,
            self._service,
            asked.model,
            self._path,
            text_files(self._path),
        )

    def run(self) -> None:
        """Load and work until something ends all."""
        _when_ended(self._end)
        self._listener.open()
        _say(f"attach with: swiftchat --connect {self._listener.address}")
        if self._listener.token_file is not None:
            _say(f"the token is in {self._listener.token_file}")
        self._service.progress("starting the engine", 0, 1)
        try:
            engine = self._load()
            self._service.tell(engine.info.to_wire())
            _say(f"ready: {self._launch.size} × {engine.info.device}")
            self._service.work(engine)
        except SwiftchatError as error:
            self._lose(error)
        except Exception as error:  # noqa: BLE001  (terminals shall hear of anything)
            from swiftchat.engine.device.device import device_error

            traceback.print_exc()
            self._lose(device_error(error))

    def _load(self) -> "AnyEngine":
        # Here, not at the top: importing torch takes a second that a terminal can show.
        from swiftchat.engine.generation.build import build_engine
        from swiftchat.engine.ranks.rendezvous import gather, open_store
        from swiftchat.engine.ranks.spmd import SpmdEngine, meet

        launch, config = self._launch, self._config
        if launch.size == 1:
            return build_engine(self._path, config, self._service.progress, _cubins())
        self._service.progress("waiting for the other ranks", 0, 1)
        store = open_store(launch)
        others, address = gather(store, launch)
        invitation = {
            "hosts": [os.uname().nodename, *(other.host for other in others)],
            "local_ranks": [launch.local_rank, *(other.local_rank for other in others)],
            "model": _digest(self._path),
        }
        followers = RankSupervisor(others, invitation, self._lose, self._service.progress)
        placement = rank_placement(launch, invitation, address)
        return SpmdEngine(
            self._path, config, _cubins(), followers, lambda: meet(config, store, 0, placement)
        )

    def _end(self, signal_name: str) -> NoReturn:
        self._leave(DeviceError(f"the engine was ended: {signal_name}", protocol.ENDED_HINT), 0)

    def _lose(self, error: SwiftchatError) -> NoReturn:
        self._leave(error, error.exit_code)

    def _leave(self, error: SwiftchatError, status: int) -> NoReturn:
        """Tell all terminals and end, whatever the main thread waits for; the others follow."""
        self._ending.acquire()  # the first reason is the one, and nobody returns from here
        try:
            self._listener.close()
            _complain("engine", error)
            self._service.tell(protocol.error_message(error))
        finally:
            os._exit(status)


def _follow(launch: Launch, asked: argparse.Namespace) -> None:
    from swiftchat.engine.ranks.rendezvous import join, open_store

    def leave(name: str) -> None:
        time.sleep(_SIGNAL_S)
        os._exit(0)

    def load(first: Callable[[], Message], on_progress: OnProgress) -> "SpmdRank":
        from swiftchat.engine.ranks.spmd import SpmdRank, meet

        message = first()
        path = _model(asked)
        require_same(path, message["model"])
        config = EngineConfig.from_wire(message["config"])
        met = meet(config, store, launch.rank, rank_placement(launch, message, address))
        return SpmdRank(path, config, on_progress, _cubins(), *met)

    _when_ended(leave)
    store = open_store(launch)
    connection, address = join(store, launch)
    RankMain(connection, load).run()


def rank_placement(launch: Launch, told: Message, address: str) -> "RankPlacement":
    """Where this rank is, by what rank 0 tells of all; NCCL shall take the interface of `address`.

    `told` has `hosts` and `local_ranks`, of each rank.
    """
    from swiftchat.engine.comm.communicator import RankPlacement

    for name, interfaces in psutil.net_if_addrs().items():
        if any(found.address == address for found in interfaces):
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")
    hosts, local_ranks = told["hosts"], told["local_ranks"]
    is_single_host = len(set(hosts)) == 1 and local_ranks == list(range(launch.size))
    return RankPlacement(
        launch.local_rank, hosts.count(hosts[launch.rank]), address, is_single_host
    )


def _model(asked: argparse.Namespace) -> Path:
    return default_store().resolve(asked.model, offline=True)


def require_same(path: Path, digest: str) -> None:
    """Raise `BadModelFile` if rank 0's model, of this digest, is not the one at `path`."""
    if _digest(path) != digest:
        raise BadModelFile(
            f"{path}: config.json is not the one that rank 0 has",
            "all hosts need the same model under the name given",
        )


def _digest(path: Path) -> str:
    return hashlib.sha256((path / "config.json").read_bytes()).hexdigest()


def _cubins() -> Path:
    return platformdirs.user_cache_path("swiftchat") / "cubins"


def _config(asked: argparse.Namespace, size: int) -> EngineConfig:
    if asked.pp < 1 or size % asked.pp:
        raise UsageError(f"{size} ranks cannot be divided into --pp {asked.pp} stages")
    return EngineConfig(
        device=asked.device,
        dtype=asked.dtype,
        ctx_size_tokens=asked.ctx_size,
        num_threads=asked.threads,
        dummy=asked.dummy,
        tp=size // asked.pp,
        pp=asked.pp,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m swiftchat.engine.worker",
        description="Run an engine that `swiftchat --connect` attaches to.",
    )
    parser.add_argument("model", metavar="MODEL", help="its name, directory or .gguf file")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT|PATH",
        default="127.0.0.1:0",
        help="on loopback, port 0 being any; or a Unix socket",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="where to leave the token that terminals need",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--pp",
        type=int,
        default=1,
        metavar="N",
        help="stages with some of the layers, which all ranks are divided into",
    )
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--ctx-size", type=int, metavar="N", help="context in tokens")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads of each rank")
    parser.add_argument("--dummy", metavar="NAME|CONFIG.JSON", help="random weights in this shape")
    return parser


def _when_ended(end: Callable[[str], None]) -> None:
    """Have a thread call `end` with a signal's name, also while the main thread is in a library."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup's
            signal.signal(number, lambda *_: None)

    def wait() -> None:
        end(signal.Signals(os.read(reads, 1)[0]).name)

    threading.Thread(target=wait, name="signals", daemon=True).start()


def _complain(who: str, error: SwiftchatError) -> None:
    _say(f"error: {who}: {error.message}")
    _say(f"hint: {error.hint}")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody may be reading the log
        print(" ".join(text.split()), file=sys.stderr, flush=True)
