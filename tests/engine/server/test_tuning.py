"""Adapters in requests: only from this machine, and only well-formed ones reach the engine."""

from typing import Any

import msgpack
import pytest

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.server.serve import EngineServer
from swiftchat.engine.server.validate import validate_command
from swiftchat.errors import UsageError


class Terminal:
    """A terminal that keeps what it is sent."""

    def __init__(self, *, is_local: bool) -> None:
        self.is_local = is_local
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


def request(tuning: object) -> dict[str, Any]:
    params = SamplingParams().to_wire()
    message = {"type": "generate", "id": 3, "prompt": [5], "params": params, "tuning": tuning}
    received: dict[str, Any] = msgpack.unpackb(msgpack.packb(message))
    return received


def test_adapters_of_remote_terminals_are_refused() -> None:
    wire = Tuning((("/etc/passwd", 1.0),)).to_wire()
    for is_local in (True, False):
        server, terminal = EngineServer(), Terminal(is_local=is_local)
        server._enqueue(terminal, request(wire))  # type: ignore[arg-type]
        assert server._commands.empty() != is_local
        assert [message["id"] for message in terminal.sent] == ([] if is_local else [3])


@pytest.mark.parametrize(
    "tuning",
    [
        7,
        {"adapters": [], "prompt": 5},
        {"adapters": [["a"]], "prompt": None},
        {"adapters": [["a", 1e9]], "prompt": None},
        {"adapters": [["a", float("nan")]], "prompt": None},
        {"adapters": [["a", 1.0]] * 65, "prompt": None},
        {"adapters": [[b"a", 1.0]], "prompt": None},
    ],
)
def test_invalid_tunings(tuning: object) -> None:
    with pytest.raises(UsageError, match=r"invalid (tuning|adapter)"):
        validate_command(request(tuning))


def test_a_tuning_survives_the_wire() -> None:
    tuning = Tuning((("a", 0.5), ("b", -1.0)), "c")
    assert Tuning.from_wire(validate_command(request(tuning.to_wire()))["tuning"]) == tuning
