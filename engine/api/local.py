"""A worker process on this machine, as the terminal starts, watches and ends it. No torch."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from swiftchat.engine.api import protocol
from swiftchat.engine.api.child_process import how_it_ended, stop_signal
from swiftchat.engine.api.params import EngineConfig
from swiftchat.errors import DeviceError

# How long a worker may take to end, which it does from any state, before it is killed.
_END_S = 1.0
# How many looks in a row must find it stopped: somebody may hold and release both processes.
_LOOKS = 3
_HINT = "the conversation is kept; send the message again to start the engine anew"


class LocalEngine:
    """One worker, told to load the model at `path`.

    `connection` leads to it, and is the `socket`'s: closing a file does not wake who reads it, its
    `shutdown` does.
    """

    def __init__(self, config: EngineConfig, path: Path) -> None:
        self.socket, theirs = socket.socketpair()
        # Its own session: the terminal's Ctrl-C is for the chat, which sends `cancel`.
        # Its stderr goes to a file so that a crash can be quoted and never blocks on a pipe.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "swiftchat.engine.worker", "--fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
            start_new_session=True,
        )
        theirs.close()
        # Here, not at the top: the worker starts meanwhile.
        from multiprocessing.connection import Connection

        self.pid = self._process.pid
        self.connection = Connection(os.dup(self.socket.fileno()))
        self._times_stopped = 0  # looks in a row that found it so
        load = {"type": "load", "path": str(path), "config": config.to_wire()}
        with contextlib.suppress(OSError):  # already dead: who reads hears so
            protocol.send(self.connection, load)

    def look(self, is_ready: bool, heard: bool) -> DeviceError | None:
        """That it was stopped: a process that says nothing does not end by itself."""
        number = stop_signal(self.pid)
        self._times_stopped = self._times_stopped + 1 if number else 0
        if self._times_stopped < _LOOKS:
            return None
        return DeviceError(f"the engine process was stopped: {number}", _HINT)

    def kill(self) -> None:
        self._process.kill()

    def obituary(self) -> DeviceError:
        """How it ended, which it does now that its connection is closed."""
        how = how_it_ended(self._process.wait(), self._stderr)
        return DeviceError(f"the engine process ended: {how}", _HINT)

    def close(self) -> None:
        """Wait for its end, which comes of itself once the connection is closed; else kill it."""
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()
