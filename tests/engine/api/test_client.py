"""The client's watch over its engine."""

from pathlib import Path
from typing import Any

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig


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
