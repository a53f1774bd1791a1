"""Supervision of the other rank processes by rank 0: commands, heartbeats, failures."""

import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Protocol

from swiftchat.engine.api import protocol, wire
from swiftchat.engine.api.protocol import OnProgress
from swiftchat.engine.api.wire import Message
from swiftchat.errors import DeviceError, SwiftchatError

# For a rank to start and import torch, whose libraries may come from a network file system and
# which blocks all threads of the process.
STARTUP_TIMEOUT_S = 600.0
HEARTBEAT_TIMEOUT_S = 4.0  # after that, loading or not
# A rank may be stopped by a signal for this long: the user may suspend and resume all of them.
_MAX_STOPPED_S = 2.0
# Wait before reporting a rank's error. When a rank dies, the others report lost connections; and
# an error on all ranks is reported by rank 0 itself, without a rank number.
ERROR_GRACE_S = 1.0
_TICK_S = 0.5

_AHEAD = 0.1  # the fraction of the work by which a rank must lead for the slowest to be named


class RankHandle(Protocol):
    """Rank 0's handle of another rank: a child process or a process on another host.

    `hint` is the hint of the error when the rank is lost.
    """

    rank: int
    hint: str
    connection: Connection

    @property
    def name(self) -> str:
        """The rank's name in messages."""

    def stop_signal(self) -> str | None:
        """Return the name of the signal that has stopped the process, if that can be known."""

    def exit_reason(self) -> str:
        """Describe the end of the process, after its connection was closed."""

    def kill(self) -> None:
        """End the process, also if it is stopped; do not wait for its exit."""


class RankSupervisor:
    """Commands and watches ranks 1 … size - 1; they exit when this process does.

    If a rank dies, fails, is stopped or sends no heartbeat, all ranks are killed, since no rank
    can continue and rank 0 may be blocked in a collective. Then `on_failure` gets an error that
    names the first such rank. It and `on_progress` are called on a thread of the supervisor.
    `rendezvous` has the message fields by which the ranks find each other.

    Needs no torch.
    """

    def __init__(
        self,
        handles: Sequence[RankHandle],
        rendezvous: Message,
        on_failure: Callable[[SwiftchatError], None],
        on_progress: OnProgress,
    ) -> None:
        self.rendezvous = rendezvous
        self._on_failure = on_failure
        self._slowest = SlowestProgress(on_progress, len(handles) + 1)
        self._ranks = [_SupervisedRank(handle) for handle in handles]
        self._all_ready = threading.Event()
        self._closing = False
        threading.Thread(target=self._watch, name="rank-supervisor", daemon=True).start()

    def send(self, message: Message) -> None:
        """Send a message to all ranks; the watching thread notices ranks that have ended."""
        for rank in self._ranks:
            rank.send(message)

    def report_progress(self, rank: int, label: str, done: int, total: int) -> None:
        """Add a rank's progress; rank 0 calls this for itself."""
        self._slowest.report(rank, label, done, total)

    def wait_ready(self) -> None:
        """Wait until all ranks have loaded; never returns if one fails."""
        self._all_ready.wait()

    def kill(self) -> None:
        """Kill all ranks, stopped ones too, without waiting for those that a driver blocks."""
        self._closing = True
        for rank in self._ranks:
            rank.handle.kill()

    def _watch(self) -> None:
        by_connection = {rank.handle.connection: rank for rank in self._ranks}
        last_check = time.monotonic()
        while not self._closing:
            for ready in wait(list(by_connection), timeout=_TICK_S):
                assert isinstance(ready, Connection)
                rank = by_connection[ready]
                try:
                    self._handle_message(rank, wire.receive(ready))
                except (EOFError, OSError):
                    self._fail(rank.exit_reason())
                    return
            now = time.monotonic()
            for rank in self._ranks:
                # At most a tick: if this process was suspended, the rank may have been too.
                failure = rank.check(min(now - last_check, _TICK_S))
                if failure is not None:
                    self._fail(failure)
                    return
            last_check = now

    def _handle_message(self, rank: "_SupervisedRank", message: Message) -> None:
        rank.silent_s = 0.0
        match message["type"]:
            case "awake":
                rank.is_started = True
            case "progress":
                label, done, total = message["label"], message["done"], message["total"]
                self.report_progress(rank.handle.rank, label, done, total)
            case "ready":
                rank.is_ready = True
                if all(other.is_ready for other in self._ranks):
                    self._all_ready.set()
            case "error":
                error = protocol.error_from(message)
                rank.error = type(error)(f"{rank.handle.name}: {error.message}", error.hint)

    def _fail(self, error: SwiftchatError) -> None:
        if not self._closing:
            self.kill()
            self._on_failure(error)


class _SupervisedRank:
    """The state of one rank, as its messages and signals show it."""

    def __init__(self, handle: RankHandle) -> None:
        self.handle = handle
        self.silent_s, self.is_started, self.is_ready = 0.0, False, False
        self.error: SwiftchatError | None = None
        self._stopped_s = self._error_age_s = 0.0

    def send(self, message: Message) -> None:
        try:
            wire.send(self.handle.connection, message)
        except OSError:
            return  # the watching thread reads the end of the connection

    def check(self, elapsed_s: float) -> SwiftchatError | None:
        """Return the rank's failure, if any; `elapsed_s` is the time since the previous check."""
        signal_name = self.handle.stop_signal()
        self._stopped_s = self._stopped_s + elapsed_s if signal_name else 0.0
        self._error_age_s += elapsed_s if self.error else 0.0
        self.silent_s += elapsed_s
        if self._stopped_s > _MAX_STOPPED_S:
            return self._lost(f"was stopped: {signal_name}")
        if self._error_age_s > ERROR_GRACE_S:
            return self.error
        if self.silent_s > (HEARTBEAT_TIMEOUT_S if self.is_started else STARTUP_TIMEOUT_S):
            return self._lost(f"has sent nothing for {self.silent_s:.0f} s")
        return None

    def exit_reason(self) -> DeviceError:
        return self._lost(self.handle.exit_reason())

    def _lost(self, reason: str) -> DeviceError:
        return DeviceError(f"{self.handle.name} {reason}", self.handle.hint)


class SlowestProgress:
    """Reports the progress of the slowest rank, and its number if another is well ahead.

    Ranks that have reported nothing are at 0.
    """

    def __init__(self, on_progress: OnProgress, size: int) -> None:
        self._on_progress, self._size = on_progress, size
        self._fractions: dict[str, dict[int, float]] = {}

    def report(self, rank: int, label: str, done: int, total: int) -> None:
        all_at_0 = dict.fromkeys(range(self._size), 0.0)
        fractions = self._fractions.setdefault(label, all_at_0)
        fractions[rank] = done / max(1, total)
        slowest = min(fractions, key=lambda other: fractions[other])
        if max(fractions.values()) > fractions[slowest] + _AHEAD:
            label += f", waiting for rank {slowest}"
        self._on_progress(label, int(100 * fractions[slowest]), 100)
