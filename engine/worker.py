"""The engine's process: `swiftchat-engine`.

With `--fd FD`, an inherited socket, it serves the terminal that started it (`engine.api.local`)
and exits with it. The main thread runs the engine. A second thread receives commands, so that a
cancel takes effect between any two steps, and ends the process when the terminal disconnects.

With a model's name it is an engine on its own, on one or several hosts, to which terminals
connect (`engine.server.standalone`).
"""

import os
import socket
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from swiftchat.engine.api import protocol
from swiftchat.engine.api.address import Address
from swiftchat.engine.api.params import EngineConfig, ServeConfig
from swiftchat.engine.api.protocol import RESTART_HINT
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


class Worker:
    """Serves one engine to the terminal that started it and, if that wants, to others."""

    def __init__(self, terminal: TerminalConnection) -> None:
        self._terminal = terminal
        self._server = EngineServer(terminal)
        self._listener: Listener | None = None
        self._exit_lock = threading.Lock()

    def run(self) -> None:
        """Load the model that the first command names, then run the engine."""
        try:
            command = self._terminal.receive()
        except (EOFError, OSError):
            return
        threading.Thread(target=self._serve, name="commands", daemon=True).start()
        if command["type"] != "load":
            raise ValueError(f"expected load, got {command['type']!r}")
        serve_config = command["serve"] and ServeConfig.from_wire(command["serve"])
        try:
            if serve_config:
                self._listen(serve_config, Path(command["path"]))
            engine = self._load(command)
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
        if serve_config and serve_config.keep_alive_s is not None:
            threading.Thread(
                target=self._keep_alive, args=(serve_config.keep_alive_s,), daemon=True
            ).start()
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

    def _listen(self, config: ServeConfig, path: Path) -> None:
        """Listen at the socket of the configuration; raises `DeviceError` if it is in use."""

        def stop() -> None:
            self._exit(EngineStopped("the engine was ended by swiftchat stop", RESTART_HINT))

        address = Address(path=Path(config.socket))
        self._listener = Listener(address, None, self._server, config.name, path, stop, config)
        self._listener.open()

    def _keep_alive(self, seconds: float) -> None:
        assert self._listener is not None
        wait_until_unused(seconds, self._server, self._listener)
        message = f"the engine ended: it was not used for {seconds:g} s"
        self._exit(EngineStopped(message, RESTART_HINT))

    def _exit(self, error: SwiftchatError) -> None:
        """Send the error and exit, even if the main thread is blocked."""
        self._exit_lock.acquire()  # only the first caller continues, and it does not return
        self._close_listener()
        self._server.publish(protocol.error_message(error))
        os._exit(0 if isinstance(error, EngineStopped) else 1)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _serve(self) -> None:
        self._server.serve(self._terminal)
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
        case ["--fd", fd]:
            Worker(TerminalConnection(socket.socket(fileno=int(fd)))).run()
        case arguments:
            from swiftchat.engine.server.standalone import serve

            serve(arguments, os.environ)


if __name__ == "__main__":
    main()
