"""The main program of a rank other than 0, and its command loop.

`swiftchat.engine.ranks.main FD RANK PARENT` is started by `ranks.spawn`. The process
receives commands over the inherited socket FD and exits when the process PARENT does: its reading
thread notices the closed socket, and on Linux the kernel kills it. It reports errors to rank 0,
which then ends all ranks.
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

from swiftchat.engine.api import protocol, wire
from swiftchat.engine.api.child_process import exit_with_parent
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import OnProgress
from swiftchat.engine.api.wire import Message
from swiftchat.engine.device.lazy_torch import import_torch, without_collections
from swiftchat.engine.ranks.supervisor import HEARTBEAT_TIMEOUT_S
from swiftchat.errors import SwiftchatError

if TYPE_CHECKING:
    from swiftchat.engine.ranks.spmd import SpmdRank


class RankMain:
    """The command loop of one rank: executes the commands that rank 0 sends.

    `load(receive_load, on_progress)` builds the engine; it calls `receive_load` to wait for the
    load message.
    """

    def __init__(
        self,
        connection: Connection,
        load: Callable[[Callable[[], Message], OnProgress], "SpmdRank"],
    ) -> None:
        self._connection, self._load = connection, load
        self._send_lock = threading.Lock()
        self._commands: SimpleQueue[Message] = SimpleQueue()

    def run(self) -> None:
        """Load the engine, then execute commands until the connection to rank 0 closes."""
        for work in (self._read, self._send_heartbeats):
            threading.Thread(target=work, daemon=True).start()
        try:
            engine = self._load(self._receive_load, self._progress)
            self._send({"type": "ready"})
            while True:
                engine.execute(self._commands.get())
        except SwiftchatError as error:
            self._report_error(error)
        except (MemoryError, RuntimeError) as error:  # raised by torch
            from swiftchat.engine.device.device import device_error

            self._report_error(device_error(error))

    def _receive_load(self) -> Message:
        """Return the load message. The caller has imported torch: heartbeats are steady now."""
        self._send({"type": "awake"})
        return self._commands.get()

    def _report_error(self, error: SwiftchatError) -> None:
        """Send the error and keep running.

        An exit would close connections, and the errors that this causes on other ranks could
        reach rank 0 before this one.
        """
        traceback.print_exc()
        self._send(protocol.error_message(error))
        threading.Event().wait()

    def _progress(self, label: str, done: int, total: int) -> None:
        self._send({"type": "progress", "label": label, "done": done, "total": total})

    def _send_heartbeats(self) -> None:
        while True:
            self._send({"type": "alive"})
            time.sleep(HEARTBEAT_TIMEOUT_S / 8)

    def _send(self, message: Message) -> None:
        with self._send_lock:
            wire.send(self._connection, message)

    def _read(self) -> None:
        try:
            while True:
                self._commands.put(wire.receive(self._connection))
        except (EOFError, OSError):
            os._exit(0)  # rank 0 has ended, and the main thread may be blocked in a collective


def load_on_same_host(
    rank: int, receive_load: Callable[[], Message], on_progress: OnProgress
) -> "SpmdRank":
    """Build the engine of a rank on rank 0's machine, from the same files."""
    # Imported here because torch takes a second, while heartbeats are already being sent; and
    # before the load message, which comes only after rank 0 has imported torch itself.
    with without_collections():
        import_torch()
        from swiftchat.engine.ranks.spmd import SpmdRank, join_on_same_host

    message = receive_load()
    config = EngineConfig.from_wire(message["config"])
    groups = join_on_same_host(config, message["rendezvous_fd"], rank)
    cubins = Path(message["cubins"]) if message["cubins"] else None
    return SpmdRank(Path(message["path"]), config, on_progress, cubins, *groups)


def main() -> None:
    fd, rank, parent = map(int, sys.argv[1:])
    exit_with_parent(parent)
    RankMain(
        Connection(fd),
        lambda receive_load, on_progress: load_on_same_host(rank, receive_load, on_progress),
    ).run()


if __name__ == "__main__":
    main()
