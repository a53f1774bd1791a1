"""The engine's process: `python -m swiftchat.engine.worker`.

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
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import Message
from swiftchat.engine.ranks.auto_tp import require_gpus, resolve_tp
from swiftchat.engine.ranks.spawn import start_ranks
from swiftchat.engine.ranks.supervisor import RankSupervisor
from swiftchat.engine.server.connection import TerminalConnection
from swiftchat.engine.server.serve import EngineServer
from swiftchat.errors import SwiftchatError

if TYPE_CHECKING:
    from swiftchat.engine.server.serve import AnyEngine


class Worker:
    """Serves one engine to one terminal."""

    def __init__(self, terminal: TerminalConnection) -> None:
        self._terminal = terminal
        self._server = EngineServer()

    def run(self) -> None:
        """Load the model that the first command names, then run the engine."""
        try:
            command = self._terminal.receive()
        except (EOFError, OSError):
            return
        threading.Thread(target=self._serve, name="commands", daemon=True).start()
        if command["type"] != "load":
            raise ValueError(f"expected load, got {command['type']!r}")
        try:
            engine = self._load(command)
        except SwiftchatError as error:
            self._server.publish(protocol.error_message(error))
            return
        except RuntimeError as error:  # raised by torch for a full, busy or broken device
            from swiftchat.engine.device.device import device_error

            traceback.print_exc()
            hint = "nvidia-smi shows other programs on the GPU; --device cpu uses the CPU"
            self._server.publish(protocol.error_message(device_error(error, hint)))
            return
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
        # Imported here, not at the top: torch takes a second, and progress is already shown.
        from swiftchat.cuda.cubin_cache import user_cache_folder
        from swiftchat.engine.generation.build import build_engine
        from swiftchat.engine.ranks.spmd import SpmdEngine

        engine: AnyEngine
        if size == 1:
            engine = build_engine(path, config, progress, user_cache_folder())
        else:
            require_gpus(config)
            engine = SpmdEngine(path, config, user_cache_folder(), supervisor)
        self._server.publish(engine.info.to_wire())
        return engine

    def _exit(self, error: SwiftchatError) -> None:
        """Send the error and exit, even if the main thread is blocked."""
        self._server.publish(protocol.error_message(error))
        os._exit(1)

    def _serve(self) -> None:
        self._server.serve(self._terminal)
        os._exit(0)  # the terminal has disconnected: end the current step as well


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
