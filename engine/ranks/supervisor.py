"""A model's other ranks, as rank 0 commands and watches them."""

import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Protocol

from swiftchat.engine.api import protocol
from swiftchat.engine.api.protocol import Message
from swiftchat.errors import DeviceError, SwiftchatError

# What a rank may take to begin and import torch, whose libraries may come over a network while
# nothing else can run in it; and then, loading or not, to say once more that it is alive.
START_S, SILENCE_S = 600.0, 4.0
# How long a rank may be held by a signal: somebody may hold and release all of them.
_STOPPED_S = 2.0
# How long to wait for a better reason than what a rank complains about. Where one dies, others
# lose their connection to it; where all fail alike, rank 0 says it without naming anyone.
COMPLAINT_S = 1.0
_TICK_S = 0.5

_WELL_AHEAD = 0.1  # of what there is to do

OnProgress = Callable[[str, int, int], None]  # label, done, total


class RankHandle(Protocol):
    """Where another rank is: a process that this one started, or one on another host.

    `hint` says what to do when it is lost.
    """

    rank: int
    hint: str
    connection: Connection

    @property
    def name(self) -> str:
        """Which it is, for messages."""

    def stop_signal(self) -> str | None:
        """The signal that holds it where it is, if that can be known."""

    def obituary(self) -> str:
        """What is known of its end, now that its connection is closed."""

    def kill(self) -> None:
        """End it, also if it is stopped, without waiting for it."""


class RankSupervisor:
    """Ranks 1 … size - 1, at their `ends`; they end when this process does.

    The first that dies, fails, is stopped or falls silent is told to `on_loss`, on a thread of
    its own, as an error that names the rank, when all have been ended: nothing can be computed
    from then on, and rank 0 may be waiting for that one for ever. `on_progress` hears, on that
    thread too, how far they are. `invitation` is what they are told of where they meet.

    Needs no torch.
    """

    def __init__(
        self,
        ends: Sequence[RankHandle],
        invitation: Message,
        on_loss: Callable[[SwiftchatError], None],
        on_progress: OnProgress,
    ) -> None:
        self.invitation = invitation
        self._on_loss, self._slowest = on_loss, SlowestProgress(on_progress, len(ends) + 1)
        self._ranks = [_SupervisedRank(end) for end in ends]
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
            follower.end.kill()  # it holds nothing that is to be written

    def _watch(self) -> None:
        by_connection = {follower.end.connection: follower for follower in self._ranks}
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

    def _hear(self, follower: "_SupervisedRank", message: Message) -> None:
        follower.silent_s = 0.0
        match message["type"]:
            case "awake":
                follower.is_awake = True
            case "progress":
                label, done, total = message["label"], message["done"], message["total"]
                self.report(follower.end.rank, label, done, total)
            case "ready":
                follower.is_ready = True
                if all(other.is_ready for other in self._ranks):
                    self._all_ready.set()
            case "error":
                error = protocol.error_from(message)
                named = type(error)(f"{follower.end.name}: {error.message}", error.hint)
                follower.complaint = named

    def _lose(self, error: SwiftchatError) -> None:
        if not self._closing:
            self.kill()
            self._on_loss(error)


class _SupervisedRank:
    """What rank 0 knows of one of them."""

    def __init__(self, end: RankHandle) -> None:
        self.end = end
        self.silent_s, self.is_awake, self.is_ready = 0.0, False, False
        self.complaint: SwiftchatError | None = None
        self._stopped_s = self._complaining_s = 0.0

    def send(self, message: Message) -> None:
        try:
            protocol.send(self.end.connection, message)
        except OSError:
            return  # the watcher reads its end

    def reason_to_give_up(self, passed_s: float) -> SwiftchatError | None:
        """What is to be told of this rank now, `passed_s` after this was asked before."""
        number = self.end.stop_signal()
        self._stopped_s = self._stopped_s + passed_s if number else 0.0
        self._complaining_s += passed_s if self.complaint else 0.0
        self.silent_s += passed_s
        if self._stopped_s > _STOPPED_S:
            return self._lost(f"was stopped: {number}")
        if self._complaining_s > COMPLAINT_S:
            return self.complaint
        if self.silent_s > (SILENCE_S if self.is_awake else START_S):
            return self._lost(f"has said nothing for {self.silent_s:.0f} s")
        return None

    def obituary(self) -> DeviceError:
        return self._lost(self.end.obituary())

    def _lost(self, how: str) -> DeviceError:
        return DeviceError(f"{self.end.name} {how}", self.end.hint)


class SlowestProgress:
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
