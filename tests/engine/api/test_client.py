"""The client's watch over its engine."""

import socket
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.wire import WireError
from swiftchat.errors import DeviceError


class CountingEngine:
    """Counts the checks of a client."""

    num_checks = 0

    def check(self, is_ready: bool, received: bool) -> None:
        self.num_checks += 1


def test_many_waiting_threads_check_the_engine_once_a_second() -> None:
    """Otherwise a suspension of a moment would look like one of many seconds."""
    engine: Any = CountingEngine()
    client = EngineClient(EngineConfig(), Path(), engine)
    client._engine = engine
    for _ in range(20):
        client._check_engine()
    assert engine.num_checks == 1


def test_a_late_reply_is_not_taken_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    client = EngineClient(EngineConfig(), Path(), remote=None)
    monkeypatch.setattr(client, "_command", lambda message: None)

    def interrupt(events: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(client, "_next", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.stats()
    for running in (1, 2):
        client._dispatch({"type": "stats", "running": running})
    assert client.stats() == {"running": 2}


def test_endless_stats_are_not_kept() -> None:
    client = EngineClient(EngineConfig(), Path(), remote=None)
    with pytest.raises(WireError, match="without a request"):
        for _ in range(1000):
            client._dispatch({"type": "stats"})


class EndingEngine:
    """An engine that ends; it knows its exit reason a little later, until it is closed."""

    def __init__(self) -> None:
        self.socket, self._other = socket.socketpair()
        self.connection = Connection(self.socket.dup().detach())
        self.is_asked, self._has_ended = threading.Event(), threading.Event()
        self.is_closed = False
        self._other.close()

    def check(self, is_ready: bool, received: bool) -> None:
        return None

    def exit_reason(self) -> DeviceError:
        self.is_asked.set()
        self._has_ended.wait()
        return DeviceError("closed too early" if self.is_closed else "ended")

    def wait_ended(self) -> None:
        self._has_ended.set()

    def close(self) -> None:
        self.is_closed = True


def test_close_waits_for_the_reader_that_asks_for_the_exit_reason() -> None:
    """It reads a file of the engine, which `close` closes."""
    engine: Any = EndingEngine()
    client = EngineClient(EngineConfig(), Path(), engine).start()
    assert engine.is_asked.wait(60)
    client.close()
    assert engine.is_closed
    with pytest.raises(DeviceError, match="ended"):
        client.wait_ready()
