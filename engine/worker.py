"""The engine's own process: `python -m swiftchat.engine.worker FD`, started by `engine.client`.

FD is an inherited socket. The main thread runs the engine; a second one reads commands, so that
a cancel is known between any two steps, and ends the process when the terminal is gone.
"""

import contextlib
import os
import sys
import threading
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue

import platformdirs

from swiftchat.engine import protocol
from swiftchat.engine.followers import Followers
from swiftchat.engine.params import EngineConfig, SamplingParams
from swiftchat.engine.protocol import Message, Prefill
from swiftchat.engine.rank_count import num_ranks
from swiftchat.errors import KernelCompileError, OutOfMemory, SwiftchatError


class Worker:
    """Serves one engine over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._commands: SimpleQueue[Message] = SimpleQueue()

    def run(self) -> None:
        """Load what the first command names, then generate until the terminal is gone."""
        threading.Thread(target=self._read, name="commands", daemon=True).start()
        command = self._commands.get()
        if command["type"] != "load":
            raise ValueError(f"expected load, got {command['type']!r}")
        try:
            self._load(command)
        except SwiftchatError as error:
            self._send(protocol.error_message(error))
            return
        except RuntimeError as error:  # torch's, for a device that is full, busy or broken
            from swiftchat.engine.device import device_error

            traceback.print_exc()
            hint = "nvidia-smi shows what else uses the GPU; --device cpu does without"
            self._send(protocol.error_message(device_error(error, hint)))
            return
        try:
            while True:
                self._obey()
                self._step()
        except SwiftchatError as error:  # after which there is no going on
            traceback.print_exc()
            self._give_up(error)

    def _load(self, command: Message) -> None:
        self._progress("starting the engine", 0, 1)
        path, asked = Path(command["path"]), EngineConfig.from_wire(command["config"])
        tp = num_ranks(asked, path)
        config, size = replace(asked, tp=tp), tp * asked.pp
        if size > 1:  # they import torch while this process does
            followers = Followers(size, self._give_up, self._progress)
        # Here, not at the top: importing torch takes a second that the terminal can show.
        from swiftchat.engine.engine import Engine
        from swiftchat.engine.lockstep import LockstepEngine

        cubins = platformdirs.user_cache_path("swiftchat") / "cubins"
        self._engine: Engine | LockstepEngine
        if size == 1:
            self._engine = Engine(path, config, self._progress, cubins)
        else:
            self._engine = LockstepEngine(path, config, cubins, followers)
        self._send(self._engine.info.to_wire())

    def _give_up(self, error: SwiftchatError) -> None:
        """Tell the error and end, whatever the main thread waits for."""
        with contextlib.suppress(OSError):  # the terminal is gone as well
            self._send(protocol.error_message(error))
        os._exit(1)

    def _obey(self) -> None:
        """Carry out the commands that have come, waiting for one when idle."""
        try:
            while True:
                command = (self._commands.get_nowait() if self._engine.has_work
                           else self._commands.get())  # fmt: skip
                match command["type"]:
                    case "generate":
                        self._generate(command)
                    case "cancel":
                        self._engine.cancel(command["id"])
                    case "stats":
                        self._send({"type": "stats", **self._engine.stats(command["measure"])})
                    case unknown:
                        raise ValueError(f"unknown command {unknown!r}")
        except Empty:
            return

    def _generate(self, command: Message) -> None:
        params = SamplingParams.from_wire(command["params"])
        try:
            self._engine.add(command["id"], command["prompt"], params)
        except SwiftchatError as error:
            self._send(protocol.error_message(error, command["id"]))

    def _step(self) -> None:
        try:
            outcomes = self._engine.step()
        except (OutOfMemory, KernelCompileError) as error:
            outcomes = self._engine.abort_all(error)
        except (MemoryError, RuntimeError) as error:
            from swiftchat.engine.device import device_error

            hint = "use a smaller --ctx-size or start a new conversation"
            found = device_error(error, hint)
            if not isinstance(found, OutOfMemory):
                raise
            traceback.print_exc()
            outcomes = self._engine.abort_all(OutOfMemory(f"out of memory: {found.message}", hint))
        for generation_id, event in outcomes:
            match event:
                case Prefill(done, total):
                    self._send({"type": "prefill", "id": generation_id,
                                "done": done, "total": total})  # fmt: skip
                case SwiftchatError():
                    self._send(protocol.error_message(event, generation_id))
                case tokens_or_finished:
                    self._send(tokens_or_finished.to_wire(generation_id))

    def _progress(self, label: str, done: int, total: int) -> None:
        self._send({"type": "progress", "label": label, "done": done, "total": total})

    def _send(self, message: Message) -> None:
        with self._sending:
            protocol.send(self._connection, message)

    def _read(self) -> None:
        try:
            while True:
                self._commands.put(protocol.receive(self._connection))
        except (EOFError, OSError):
            os._exit(0)  # the terminal is gone, and whoever is computing computes for nobody


def main() -> None:
    Worker(Connection(int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
