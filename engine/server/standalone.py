"""An engine on its own, to which terminals connect: one process, or several ranks on any hosts.

    swiftchat-engine MODEL
    torchrun --nnodes 2 --nproc-per-node 4 … --no-python swiftchat-engine MODEL

Rank 0 listens for terminals. All ranks exit when rank 0 does or when one of them is lost.
"""

import argparse
import contextlib
import hashlib
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import psutil

from swiftchat.engine.api import protocol
from swiftchat.engine.api.address import Address
from swiftchat.engine.api.params import DTYPES, EngineConfig
from swiftchat.engine.api.protocol import OnProgress
from swiftchat.engine.api.wire import Message
from swiftchat.engine.ranks.auto_tp import resolve_tp
from swiftchat.engine.ranks.launch import Launch
from swiftchat.engine.ranks.main import RankMain
from swiftchat.engine.ranks.supervisor import RankSupervisor
from swiftchat.engine.server.listener import Listener
from swiftchat.engine.server.serve import EngineServer
from swiftchat.errors import BadModelFile, EngineStopped, SwiftchatError, UsageError
from swiftchat.weights.files.reading import read_small_file
from swiftchat.weights.store import default_store

if TYPE_CHECKING:
    from swiftchat.engine.comm.communicator import RankPlacement
    from swiftchat.engine.ranks.spmd import SpmdRank
    from swiftchat.engine.server.serve import AnyEngine

# A launcher signals all ranks at once: the others wait, while rank 0 notifies the terminals.
_SIGNAL_DELAY_S = 1.0


def serve(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run the rank that the environment names until a signal, rank 0's exit, or a failure."""
    options = _parser().parse_args(arguments)
    name = "engine"
    try:
        launch = Launch.from_environment(environ)
        name = launch.name if launch.size > 1 else name
        if launch.rank == 0:
            _RankZero(launch, options).run()
        else:
            _run_other_rank(launch, options)
    except SwiftchatError as error:
        _log_error(name, error)
        os._exit(error.exit_code)


class _RankZero:
    """Rank 0, possibly the only rank: it listens for terminals and supervises the other ranks."""

    def __init__(self, launch: Launch, options: argparse.Namespace) -> None:
        self._launch, self._path = launch, _model_path(options)
        self._config = _engine_config(options, launch.size)
        resolve_tp(self._config, self._path)  # raises if the model cannot be divided
        self._server, self._exit_lock = EngineServer(), threading.Lock()
        self._listener = Listener(
            Address.parse(options.listen),
            options.token_file,
            self._server,
            options.model,
            self._path,
        )

    def run(self) -> None:
        """Load the model and run the engine until a signal or a failure."""
        _on_signal(self._exit_by_signal)
        self._listener.open()
        _log(f"connect with: swiftchat --connect {shlex.quote(str(self._listener.address))}")
        if self._listener.token_file is not None:
            _log(f"token file: {self._listener.token_file}")
        self._server.progress("starting the engine", 0, 1)
        try:
            engine = self._load()
            self._server.publish(engine.info.to_wire())
            _log(f"ready: {self._launch.size} × {engine.info.device}")
            self._server.run(engine)
        except SwiftchatError as error:
            self._exit_by_error(error)
        except Exception as error:  # noqa: BLE001  (any error is sent to the terminals)
            from swiftchat.engine.device.device import device_error

            traceback.print_exc()
            self._exit_by_error(device_error(error))

    def _load(self) -> "AnyEngine":
        # Imported here, not at the top: torch takes a second, and progress is already shown.
        from swiftchat.cuda.cubin_cache import user_cache_folder
        from swiftchat.engine.generation.build import build_engine
        from swiftchat.engine.ranks.rendezvous import accept_ranks, open_store
        from swiftchat.engine.ranks.spmd import SpmdEngine, join_ranks

        launch, config, cubins = self._launch, self._config, user_cache_folder()
        if launch.size == 1:
            return build_engine(self._path, config, self._server.progress, cubins)
        self._server.progress("waiting for the other ranks", 0, 1)
        store = open_store(launch)
        others, address = accept_ranks(store, launch)
        rendezvous = {
            "hosts": [os.uname().nodename, *(other.host for other in others)],
            "local_ranks": [launch.local_rank, *(other.local_rank for other in others)],
            "model": _digest(self._path),
        }
        supervisor = RankSupervisor(others, rendezvous, self._exit_by_error, self._server.progress)
        placement = rank_placement(launch, rendezvous, address)
        return SpmdEngine(
            self._path, config, cubins, supervisor, lambda: join_ranks(config, store, 0, placement)
        )

    def _exit_by_signal(self, signal_name: str) -> NoReturn:
        message = f"the engine was ended by {signal_name}"
        self._exit(EngineStopped(message, protocol.REMOTE_RESTART_HINT), 0)

    def _exit_by_error(self, error: SwiftchatError) -> NoReturn:
        self._exit(error, error.exit_code)

    def _exit(self, error: SwiftchatError, status: int) -> NoReturn:
        """Send the error to all terminals and exit, even if the main thread is blocked."""
        self._exit_lock.acquire()  # only the first caller continues, and it does not return
        try:
            self._listener.close()
            if isinstance(error, EngineStopped):
                _log(error.message)
            else:
                _log_error("engine", error)
            self._server.publish(protocol.error_message(error))
        finally:
            os._exit(status)


def _run_other_rank(launch: Launch, options: argparse.Namespace) -> None:
    from swiftchat.cuda.cubin_cache import user_cache_folder
    from swiftchat.engine.ranks.rendezvous import connect_to_rank_0, open_store

    def exit_by_signal(signal_name: str) -> None:
        time.sleep(_SIGNAL_DELAY_S)
        os._exit(0)

    def load(receive_load: Callable[[], Message], on_progress: OnProgress) -> "SpmdRank":
        from swiftchat.engine.ranks.spmd import SpmdRank, join_ranks

        message = receive_load()
        path = _model_path(options)
        check_same_model(path, message["model"])
        config = EngineConfig.from_wire(message["config"])
        placement = rank_placement(launch, message, address)
        groups = join_ranks(config, store, launch.rank, placement)
        return SpmdRank(path, config, on_progress, user_cache_folder(), *groups)

    _on_signal(exit_by_signal)
    store = open_store(launch)
    connection, address = connect_to_rank_0(store, launch)
    RankMain(connection, load).run()


def rank_placement(launch: Launch, rendezvous: Message, address: str) -> "RankPlacement":
    """Return this rank's placement and have NCCL use the network interface of `address`.

    `rendezvous` has the `hosts` and `local_ranks` of all ranks. An NCCL_SOCKET_IFNAME that is
    already set stays.
    """
    from swiftchat.engine.comm.communicator import RankPlacement

    for name, interface_addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in interface_addresses):
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")
    hosts, local_ranks = rendezvous["hosts"], rendezvous["local_ranks"]
    is_single_host = len(set(hosts)) == 1 and local_ranks == list(range(launch.size))
    num_local_ranks = hosts.count(hosts[launch.rank])
    return RankPlacement(launch.local_rank, num_local_ranks, address, is_single_host)


def _model_path(options: argparse.Namespace) -> Path:
    return default_store().resolve(options.model, offline=True)


def check_same_model(path: Path, digest: str) -> None:
    """Raise `BadModelFile` if the config.json in `path` has another digest than rank 0's."""
    if _digest(path) != digest:
        raise BadModelFile(
            f"{path}: config.json differs from rank 0's",
            "store the same model under the given name on all hosts",
        )


def _digest(path: Path) -> str:
    return hashlib.sha256(read_small_file(path / "config.json")).hexdigest()


def _engine_config(options: argparse.Namespace, size: int) -> EngineConfig:
    if options.pp < 1 or size % options.pp:
        raise UsageError(f"{size} ranks cannot be divided into --pp {options.pp} stages")
    return EngineConfig(
        device=options.device,
        dtype=options.dtype,
        ctx_size_tokens=options.ctx_size,
        num_threads=options.threads,
        dummy=options.dummy,
        tp=size // options.pp,
        pp=options.pp,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="swiftchat-engine",
        description="Run an engine to which terminals connect with `swiftchat --connect`.",
    )
    parser.add_argument("model", metavar="MODEL", help="a model name, directory or .gguf file")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT|PATH",
        default="127.0.0.1:0",
        help="loopback address, port 0 for any free port, or path of a Unix socket",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file to write the token to that terminals need",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--pp", type=int, default=1, metavar="N", help="divide the ranks into N pipeline stages"
    )
    parser.add_argument("--dtype", choices=DTYPES, help="data type of weights and activations")
    parser.add_argument("--ctx-size", type=int, metavar="N", help="context in tokens")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads of each rank")
    parser.add_argument(
        "--dummy", metavar="NAME|CONFIG.JSON", help="random weights with the shapes of a model"
    )
    return parser


def _on_signal(end: Callable[[str], None]) -> None:
    """Call `end` with the signal's name on a thread: the main thread may be inside a library."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, lambda *_: None)

    def wait() -> None:
        end(signal.Signals(os.read(read_fd, 1)[0]).name)

    threading.Thread(target=wait, name="signals", daemon=True).start()


def _log_error(name: str, error: SwiftchatError) -> None:
    _log(f"error: {name}: {error.message}")
    _log(f"hint: {error.hint}")


def _log(text: str) -> None:
    with contextlib.suppress(OSError):  # the reader of the log may have closed its pipe
        print(" ".join(text.split()), file=sys.stderr, flush=True)
