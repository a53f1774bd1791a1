"""The engine's own process: `python -m swiftchat.engine.worker`, for one terminal or for several.

With `--fd FD`, an inherited socket, it is what `engine.api.local` starts for a terminal, and
ends with that: the main thread runs the engine; a second one reads commands, so that a cancel is
known between any two steps, and ends the process when the terminal is gone. With a model's name it
is an engine that terminals attach to, alone or on several hosts (`engine.server.standalone`).
"""

import os
import socket
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from swiftchat.engine.api import protocol
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import Message
from swiftchat.engine.ranks.auto_tp import num_ranks, require_gpus
from swiftchat.engine.ranks.spawn import start_ranks
from swiftchat.engine.ranks.supervisor import RankSupervisor
from swiftchat.engine.server.connection import Terminal
from swiftchat.engine.server.serve import EngineServer
from swiftchat.errors import SwiftchatError

if TYPE_CHECKING:
    from swiftchat.engine.server.serve import AnyEngine


class Worker:
    """Serves one engine to one terminal."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._service = EngineServer()

    def run(self) -> None:
        """Load what the first command names, then generate until the terminal is gone."""
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
            self._service.tell(protocol.error_message(error))
            return
        except RuntimeError as error:  # torch's, for a device that is full, busy or broken
            from swiftchat.engine.device.device import device_error

            traceback.print_exc()
            hint = "nvidia-smi shows what else uses the GPU; --device cpu does without"
            self._service.tell(protocol.error_message(device_error(error, hint)))
            return
        try:
            self._service.work(engine)
        except SwiftchatError as error:  # after which there is no going on
            traceback.print_exc()
            self._give_up(error)

    def _load(self, command: Message) -> "AnyEngine":
        progress = self._service.progress
        progress("starting the engine", 0, 1)
        path, asked = Path(command["path"]), EngineConfig.from_wire(command["config"])
        tp = num_ranks(asked, path)
        config, size = replace(asked, tp=tp), tp * asked.pp
        if size > 1:  # they import torch while this process does
            followers = RankSupervisor(*start_ranks(size), self._give_up, progress)
        # Here, not at the top: importing torch takes a second that the terminal can show.
        from swiftchat.engine.generation.build import build_engine
        from swiftchat.engine.ranks.spmd import SpmdEngine

        cubins = platformdirs.user_cache_path("swiftchat") / "cubins"
        engine: AnyEngine
        if size == 1:
            engine = build_engine(path, config, progress, cubins)
        else:
            require_gpus(config)
            engine = SpmdEngine(path, config, cubins, followers)
        self._service.tell(engine.info.to_wire())
        return engine

    def _give_up(self, error: SwiftchatError) -> None:
        """Tell the error and end, whatever the main thread waits for."""
        self._service.tell(protocol.error_message(error))
        os._exit(1)

    def _serve(self) -> None:
        self._service.serve(self._terminal)
        os._exit(0)  # the terminal is gone, and whoever is computing computes for nobody


def main() -> None:
    # Before torch loads it: libgomp's threads spin 30 times as long for each other by default,
    # which stops everything where other programs use the cores too.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    match sys.argv[1:]:
        case ["--fd", fd]:
            Worker(Terminal(socket.socket(fileno=int(fd)))).run()
        case arguments:
            from swiftchat.engine.server.standalone import serve

            serve(arguments, os.environ)


if __name__ == "__main__":
    main()
