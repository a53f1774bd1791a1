"""A rank other than 0: `python -m swiftchat.engine.ranks.main FD RANK PARENT`, by `rank_process`.

It repeats what rank 0 does with its engine, told over the inherited socket FD, and ends when the
process PARENT is gone: a thread reads the socket, and where the kernel can, it sends a signal too.
What fails here is told to rank 0, which then ends all.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from swiftchat.engine.api import protocol
from swiftchat.engine.api.child_process import end_with
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import Message
from swiftchat.engine.ranks.supervisor import SILENCE_S, OnProgress
from swiftchat.errors import SwiftchatError

if TYPE_CHECKING:
    from swiftchat.engine.ranks.spmd import SpmdRank


class RankMain:
    """One rank's engine behind a connection to rank 0.

    `load` makes the engine of rank 0's first message, which it is given a function to wait for.
    """

    def __init__(
        self,
        connection: Connection,
        load: Callable[[Callable[[], Message], OnProgress], "SpmdRank"],
    ) -> None:
        self._connection, self._load = connection, load
        self._sending = threading.Lock()
        self._commands: SimpleQueue[Message] = SimpleQueue()

    def run(self) -> None:
        """Load what the first message names, then repeat what is told until rank 0 is gone."""
        for work in (self._read, self._say_alive):
            threading.Thread(target=work, daemon=True).start()
        try:
            engine = self._load(self._first, self._progress)
            self._send({"type": "ready"})
            while True:
                engine.repeat(self._commands.get())
        except SwiftchatError as error:
            self._complain(error)
        except (MemoryError, RuntimeError) as error:  # torch's
            from swiftchat.engine.device.device import device_error

            self._complain(device_error(error))

    def _first(self) -> Message:
        """What is to be loaded; who asks has imported torch, and is never silent from now on."""
        self._send({"type": "awake"})
        return self._commands.get()

    def _complain(self, error: SwiftchatError) -> None:
        """Tell it, and stay: where several fail, rank 0 shall tell the cause from what follows."""
        traceback.print_exc()
        self._send(protocol.error_message(error))
        threading.Event().wait()

    def _progress(self, label: str, done: int, total: int) -> None:
        self._send({"type": "progress", "label": label, "done": done, "total": total})

    def _say_alive(self) -> None:
        while True:
            self._send({"type": "alive"})
            time.sleep(SILENCE_S / 8)

    def _send(self, message: Message) -> None:
        with self._sending:
            protocol.send(self._connection, message)

    def _read(self) -> None:
        try:
            while True:
                self._commands.put(protocol.receive(self._connection))
        except (EOFError, OSError):
            os._exit(0)  # rank 0 is gone, and the main thread may be waiting for it


def load_here(rank: int, first: Callable[[], Message], on_progress: OnProgress) -> "SpmdRank":
    """A rank on rank 0's machine, with the same files."""
    # Here, not at the top: torch takes a second, and this rank already says that it lives.
    # And before what to load is known: rank 0 tells that when it has imported torch itself.
    from swiftchat.engine.ranks.spmd import SpmdRank, connect

    message = first()
    config = EngineConfig.from_wire(message["config"])
    met = connect(config, message["meeting"], rank)
    cubins = Path(message["cubins"]) if message["cubins"] else None
    return SpmdRank(Path(message["path"]), config, on_progress, cubins, *met)


def main() -> None:
    end_with(int(sys.argv[3]))
    rank = int(sys.argv[2])
    RankMain(Connection(int(sys.argv[1])), lambda *told: load_here(rank, *told)).run()


if __name__ == "__main__":
    main()
