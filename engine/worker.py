"""The engine's process: `swiftchat-engine`.

With `--fds FD [LISTENING_FD]`, inherited sockets, it serves the terminal that started it
(`engine.api.local`) and exits with it, unless it stays. The main thread runs the engine. A second
thread receives commands, so that a cancel takes effect between any two steps, and ends the process
when the terminal disconnects.

With a model's name it is an engine on its own, on one or several hosts, to which terminals
connect (`engine.server.standalone`).
"""

import os
import socket
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from swiftchat.engine.api import protocol
from swiftchat.engine.api.address import Address
from swiftchat.engine.api.engine_log import log_path, shorten_log
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import RESTART_HINT
from swiftchat.engine.api.serve_config import ServeConfig
from swiftchat.engine.api.wire import Message
from swiftchat.engine.device.driver import open_early
from swiftchat.engine.device.lazy_torch import import_torch, without_collections
from swiftchat.engine.ranks.auto_tp import require_gpus, resolve_tp
from swiftchat.engine.ranks.spawn import start_ranks
from swiftchat.engine.ranks.supervisor import RankSupervisor
from swiftchat.engine.server.connection import TerminalConnection
from swiftchat.engine.server.keep_alive import wait_until_unused
from swiftchat.engine.server.listener import Listener
from swiftchat.engine.server.serve import EngineServer
from swiftchat.errors import EngineStopped, SwiftchatError

if TYPE_CHECKING:
    from swiftchat.engine.server.serve import AnyEngine

# After the terminal has disconnected, to write what the disk does not have yet.
_SAVE_S = 1.5
_WATCH_S = 1.0


class Worker:
    """Serves one engine to the terminal that started it and, if that wants, to others.

    `load` is the terminal's first command. The others connect to `listening`.
    """

    def __init__(
        self,
        terminal: TerminalConnection,
        load: Message,
        listening: socket.socket | None = None,
    ) -> None:
        if load["type"] != "load":
            raise ValueError(f"expected load, got {load['type']!r}")
        self._serve_config: ServeConfig | None = None
        if load["serve"] is not None:
            self._serve_config = ServeConfig.from_wire(load["serve"])
        self._terminal, self._load_command, self._listening = terminal, load, listening
        self._server = EngineServer(None if self._stays else terminal)
        self._listener: Listener | None = None
        self._exit_lock = threading.Lock()

    @property
    def _stays(self) -> bool:
        return self._serve_config is not None and self._serve_config.stays

    def run(self) -> None:
        """Load the model, then run the engine."""
        threading.Thread(target=self._serve, name="commands", daemon=True).start()
        if self._serve_config is not None and self._stays:
            socket_path = Path(self._serve_config.socket)
            threading.Thread(target=self._watch, args=(socket_path,), daemon=True).start()
        try:
            if self._serve_config is not None:
                self._listen(self._serve_config)
            engine = self._load(self._load_command)
        except SwiftchatError as error:
            self._close_listener()
            self._server.publish(protocol.error_message(error))
            return
        except RuntimeError as error:  # raised by torch for a full, busy or broken device
            from swiftchat.engine.device.device import device_error

            traceback.print_exc()
            hint = "nvidia-smi shows other programs on the GPU; --device cpu uses the CPU"
            self._close_listener()
            self._server.publish(protocol.error_message(device_error(error, hint)))
            return
        if self._listener is not None and self._server.keep_alive_s is not None:
            threading.Thread(target=self._keep_alive, args=(self._listener,), daemon=True).start()
        try:
            self._server.run(engine)
        except SwiftchatError as error:
            traceback.print_exc()
            self._exit(error)

    def _load(self, command: Message) -> "AnyEngine":
        progress = self._server.progress
        progress("starting the engine", 0, 1)
        path, config = Path(command["path"]), EngineConfig.from_wire(command["config"])
        tp = resolve_tp(config, path)
        config, size = replace(config, tp=tp), tp * config.pp
        if size > 1:  # before this process imports torch: they import it at the same time
            supervisor = RankSupervisor(*start_ranks(size), self._exit, progress)
        else:
            open_early(config.device)
        # Imported here, not at the top: torch takes a second, and progress is already shown.
        progress("loading PyTorch", 0, 1)
        with without_collections():
            import_torch()
            progress("preparing the engine", 0, 1)
            from swiftchat.cuda.cubin_cache import user_cache_folder
            from swiftchat.engine.api.kv_folder import user_kv_folder
            from swiftchat.engine.generation.build import build_engine
            from swiftchat.engine.ranks.spmd import SpmdEngine

        engine: AnyEngine
        if size == 1:
            engine = build_engine(
                path, config, progress, user_cache_folder(), kv_folder=user_kv_folder()
            )
        else:
            require_gpus(config)
            engine = SpmdEngine(path, config, user_cache_folder(), supervisor)
        self._server.publish(engine.info.to_wire())
        return engine

    def _listen(self, config: ServeConfig) -> None:
        def stop() -> None:
            self._exit(EngineStopped("the engine was ended by swiftchat stop", RESTART_HINT))

        self._server.keep_alive_s = config.keep_alive_s
        address, path = Address(path=Path(config.socket)), Path(self._load_command["path"])
        try:
            self._listener = Listener(
                *(address, None, self._server, config.name, path),
                *(stop, config.endpoint, self._listening),
            )
        except SwiftchatError:
            Path(config.socket).unlink(missing_ok=True)
            raise
        self._listener.open()

    def _keep_alive(self, listener: Listener) -> None:
        wait_until_unused(self._server, listener)
        message = f"the engine ended: it was not used for {self._server.keep_alive_s:g} s"
        self._exit(EngineStopped(message, RESTART_HINT))

    def _watch(self, socket_path: Path) -> None:
        """Bound the log of an engine that stays; end one that no terminal can find any more."""
        while True:
            shorten_log(sys.stderr.fileno())
            if not (socket_path.exists() or self._server.num_terminals):
                message = "the engine ended: its socket was removed"
                self._exit(EngineStopped(message, RESTART_HINT))
            time.sleep(_WATCH_S)

    def _exit(self, error: SwiftchatError) -> None:
        """Send the error and exit, even if the main thread is blocked."""
        self._exit_lock.acquire()  # only the first caller continues, and it does not return
        self._close_listener()
        config = self._serve_config
        if config is not None and config.stays and isinstance(error, EngineStopped):
            log_path(Path(config.socket)).unlink(missing_ok=True)  # nothing went wrong
        self._server.publish(protocol.error_message(error))
        os._exit(0 if isinstance(error, EngineStopped) else 1)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _serve(self) -> None:
        self._server.serve(self._terminal)
        if self._stays:
            return
        # The terminal has disconnected: no other may attach to an engine that ends, and the current
        # step ends as well.
        self._close_listener()
        self._server.wait_saved(_SAVE_S)
        self._exit(EngineStopped("the engine was ended by its terminal", RESTART_HINT))


def main() -> None:
    # Before torch loads libgomp: by default its threads spin 30 times as long while they wait for
    # each other, which stalls every step when other programs use the cores too.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    match sys.argv[1:]:
        case ["--fds", *fds]:
            connected, *listening = (socket.socket(fileno=int(fd)) for fd in fds)
            terminal = TerminalConnection(connected)
            try:
                load = terminal.receive()
            except (EOFError, OSError):
                for one in listening:
                    Path(one.getsockname()).unlink(missing_ok=True)
                return
            Worker(terminal, load, *listening).run()
        case arguments:
            from swiftchat.engine.server.standalone import serve

            serve(arguments, os.environ)


if __name__ == "__main__":
    main()
