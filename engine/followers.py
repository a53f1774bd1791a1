"""The processes of a model's other ranks, as rank 0 starts, commands and watches them."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import IO

from swiftchat.engine import protocol
from swiftchat.engine.protocol import Message
from swiftchat.errors import DeviceError, SwiftchatError

# What a rank may take to begin, import and load, and to say once more that it is alive.
START_S, SILENCE_S = 600.0, 4.0
_LAST_WORDS_BYTES = 2000
_HINT = "the conversation is kept; send the message again to start the engine anew"

OnProgress = Callable[[int, str, int, int], None]


class Followers:
    """Ranks 1 … size - 1, a process each; they end when this one does.

    The first that dies, fails or falls silent is told to `on_loss`, on a thread of its own, as an
    error that names the rank; there is no going on without it. `on_progress` hears, on that
    thread too, (rank, label, done, total).
    """

    def __init__(self, size: int, on_loss: Callable[[SwiftchatError], None],
                 on_progress: OnProgress) -> None:  # fmt: skip
        self._on_loss, self._on_progress = on_loss, on_progress
        self._ranks = [_Follower(rank) for rank in range(1, size)]
        self._closing = False
        self._watcher = threading.Thread(target=self._watch, name="followers", daemon=True)
        self._watcher.start()

    def tell(self, message: Message) -> None:
        """Send a message to all; of one that is gone the watcher hears by itself."""
        for follower in self._ranks:
            follower.send(message)

    @property
    def pids(self) -> list[int]:
        return [follower.process.pid for follower in self._ranks]

    def close(self) -> None:
        """End them, and wait until they are gone."""
        self._closing = True
        for follower in self._ranks:
            follower.process.kill()  # it holds nothing that is to be written
            follower.process.wait()
        self._watcher.join()
        for follower in self._ranks:
            follower.close()

    def _watch(self) -> None:
        by_connection = {follower.connection: follower for follower in self._ranks}
        while not self._closing:
            for ready in wait(list(by_connection), timeout=SILENCE_S / 4):
                assert isinstance(ready, Connection)
                follower = by_connection[ready]
                try:
                    self._hear(follower, protocol.receive(ready))
                except (EOFError, OSError):
                    if not self._closing:
                        self._lose(follower.obituary())
                    return
            silent = next((f for f in self._ranks if f.is_silent()), None)
            if silent is not None:
                self._lose(silent.complaint())
                return

    def _hear(self, follower: "_Follower", message: Message) -> None:
        follower.heard = time.monotonic()
        match message["type"]:
            case "progress":
                label, done, total = message["label"], message["done"], message["total"]
                self._on_progress(follower.rank, label, done, total)
            case "ready":
                follower.is_ready = True
            case "error":
                error = protocol.error_from(message)
                self._lose(type(error)(f"rank {follower.rank}: {error.message}", error.hint))

    def _lose(self, error: SwiftchatError) -> None:
        if not self._closing:
            self._closing = True
            self._on_loss(error)


class _Follower:
    """One of the processes."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.heard, self.is_ready = time.monotonic(), False
        self._last_words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "swiftchat.engine.follower", str(theirs.fileno()),
             str(rank), str(os.getpid())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=self._last_words,
            stderr=self._last_words,
        )  # fmt: skip
        theirs.close()
        self.connection = Connection(ours.detach())

    def send(self, message: Message) -> None:
        try:
            protocol.send(self.connection, message)
        except OSError:
            return  # the watcher reads its end

    def is_silent(self) -> bool:
        limit = SILENCE_S if self.is_ready else START_S
        return time.monotonic() - self.heard > limit

    def complaint(self) -> DeviceError:
        since = time.monotonic() - self.heard
        return DeviceError(f"rank {self.rank} does not answer since {since:.0f} s", _HINT)

    def obituary(self) -> DeviceError:
        try:
            status = self.process.wait(1)
        except subprocess.TimeoutExpired:
            return DeviceError(f"rank {self.rank} has closed its connection", _HINT)
        how = f"exit status {status}"
        if status < 0:
            how = f"signal {-status} ({signal.Signals(-status).name})"
        size = self._last_words.seek(0, os.SEEK_END)
        self._last_words.seek(max(0, size - _LAST_WORDS_BYTES))
        words = self._last_words.read().decode(errors="replace").strip().splitlines()
        message = f"rank {self.rank} ended: {how}"
        return DeviceError(f"{message}: {words[-1]}" if words else message, _HINT)

    def close(self) -> None:
        self.connection.close()
        self._last_words.close()
