"""The processes of a model's other ranks, as rank 0 starts, commands and watches them."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import IO

from swiftchat.engine import protocol
from swiftchat.engine.child import how_it_ended, stop_signal
from swiftchat.engine.protocol import Message
from swiftchat.errors import DeviceError, SwiftchatError

# What a rank may take to begin, import and load, and to say once more that it is alive.
START_S, SILENCE_S = 600.0, 4.0
# How long a rank may be held by a signal: somebody may hold and release all of them.
_STOPPED_S = 2.0
# How long to wait for a better reason than what a rank complains about. Where one dies, others
# lose their connection to it; where all fail alike, rank 0 says it without naming anyone.
COMPLAINT_S = 1.0
_TICK_S = 0.5
_HINT = "the conversation is kept; send the message again to start the engine anew"

_WELL_AHEAD = 0.1  # of what there is to do

OnProgress = Callable[[str, int, int], None]  # label, done, total


class Followers:
    """Ranks 1 … size - 1, a process each; they end when this one does.

    The first that dies, fails, is stopped or falls silent is told to `on_loss`, on a thread of
    its own, as an error that names the rank, when all have been ended: nothing can be computed
    from then on, and rank 0 may be waiting for that one for ever. `on_progress` hears, on that
    thread too, how far they are. `meeting` is the descriptor of an empty file that all have.

    Needs no torch, so that they begin while rank 0 imports it. `DeviceError` if this is no Linux.
    """

    def __init__(self, size: int, on_loss: Callable[[SwiftchatError], None],
                 on_progress: OnProgress) -> None:  # fmt: skip
        if not hasattr(os, "memfd_create"):
            raise DeviceError("several ranks need Linux", "leave --tp and --pp out")
        self.meeting = os.memfd_create("swiftchat-ranks", 0)
        self._on_loss, self._slowest = on_loss, Slowest(on_progress, size)
        self._ranks = [_Follower(rank, self.meeting) for rank in range(1, size)]
        self._all_ready = threading.Event()
        self._closing = False
        threading.Thread(target=self._watch, name="followers", daemon=True).start()

    def tell(self, message: Message) -> None:
        """Send a message to all; of one that is gone the watcher hears by itself."""
        for follower in self._ranks:
            follower.send(message)

    def report(self, rank: int, label: str, done: int, total: int) -> None:
        """Tell how far a rank is; others do so themselves, rank 0's is told here."""
        self._slowest.report(rank, label, done, total)

    def wait_ready(self) -> None:
        """Wait until all have loaded; for ever, if `on_loss` returns from a loss."""
        self._all_ready.wait()

    def kill(self) -> None:
        """End them, stopped ones too, without waiting for one that a driver may hold."""
        self._closing = True
        for follower in self._ranks:
            follower.process.kill()  # it holds nothing that is to be written

    def _watch(self) -> None:
        by_connection = {follower.connection: follower for follower in self._ranks}
        looked = time.monotonic()
        while not self._closing:
            for ready in wait(list(by_connection), timeout=_TICK_S):
                assert isinstance(ready, Connection)
                follower = by_connection[ready]
                try:
                    self._hear(follower, protocol.receive(ready))
                except (EOFError, OSError):
                    self._lose(follower.obituary())
                    return
            now = time.monotonic()
            for follower in self._ranks:
                # Not all that has passed: if this process was held as well, the rank may have
                # had no time to say a word.
                reason = follower.reason_to_give_up(min(now - looked, _TICK_S))
                if reason is not None:
                    self._lose(reason)
                    return
            looked = now

    def _hear(self, follower: "_Follower", message: Message) -> None:
        follower.silent_s = 0.0
        match message["type"]:
            case "progress":
                label, done, total = message["label"], message["done"], message["total"]
                self.report(follower.rank, label, done, total)
            case "ready":
                follower.is_ready = True
                if all(other.is_ready for other in self._ranks):
                    self._all_ready.set()
            case "error":
                error = protocol.error_from(message)
                named = type(error)(f"rank {follower.rank}: {error.message}", error.hint)
                follower.complaint = named

    def _lose(self, error: SwiftchatError) -> None:
        if not self._closing:
            self.kill()
            self._on_loss(error)


class _Follower:
    """One of the processes."""

    def __init__(self, rank: int, meeting: int) -> None:
        self.rank = rank
        self.silent_s, self.is_ready = 0.0, False
        self.complaint: SwiftchatError | None = None
        self._stopped_s = self._complaining_s = 0.0
        # Not in a temporary file: `tempfile` tries out folders first, by files with names, and this
        # process may be ended in between.
        self._output: IO[bytes] = os.fdopen(os.memfd_create("swiftchat-rank-output"), "w+b")
        ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "swiftchat.engine.follower", str(theirs.fileno()),
             str(rank), str(os.getpid())],
            pass_fds=[theirs.fileno(), meeting], stdin=subprocess.DEVNULL, stdout=self._output,
            stderr=self._output,
        )  # fmt: skip
        theirs.close()
        self.connection = Connection(ours.detach())

    def send(self, message: Message) -> None:
        try:
            protocol.send(self.connection, message)
        except OSError:
            return  # the watcher reads its end

    def reason_to_give_up(self, passed_s: float) -> SwiftchatError | None:
        """What is to be told of this rank now, `passed_s` after this was asked before."""
        number = stop_signal(self.process.pid)
        self._stopped_s = self._stopped_s + passed_s if number else 0.0
        self._complaining_s += passed_s if self.complaint else 0.0
        self.silent_s += passed_s
        if self._stopped_s > _STOPPED_S:
            return DeviceError(f"rank {self.rank} was stopped: {number}", _HINT)
        if self._complaining_s > COMPLAINT_S:
            return self.complaint
        if self.silent_s > (SILENCE_S if self.is_ready else START_S):
            words = f"rank {self.rank} has said nothing for {self.silent_s:.0f} s"
            return DeviceError(words, _HINT)
        return None

    def obituary(self) -> DeviceError:
        try:
            status = self.process.wait(1)
        except subprocess.TimeoutExpired:
            return DeviceError(f"rank {self.rank} has closed its connection", _HINT)
        return DeviceError(f"rank {self.rank} ended: {how_it_ended(status, self._output)}", _HINT)


class Slowest:
    """Of all ranks' progress, tells how far the one is that is furthest behind.

    It is named where another is well ahead of it. Ranks that have said nothing are at 0.
    """

    def __init__(self, on_progress: OnProgress, size: int) -> None:
        self._on_progress, self._size = on_progress, size
        self._shares: dict[str, dict[int, float]] = {}

    def report(self, rank: int, label: str, done: int, total: int) -> None:
        all_at_0 = dict.fromkeys(range(self._size), 0.0)
        shares = self._shares.setdefault(label, all_at_0)
        shares[rank] = done / max(1, total)
        last = min(shares, key=lambda other: shares[other])
        if max(shares.values()) > shares[last] + _WELL_AHEAD:
            label += f", waiting for rank {last}"
        self._on_progress(label, int(100 * shares[last]), 100)
