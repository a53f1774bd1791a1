"""The messages of an engine's step: one for each terminal, whatever the number of answers."""

from typing import Any

import pytest

from swiftchat.engine.api import protocol, wire
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Embedding, Finished, Prefill, Tokens
from swiftchat.engine.api.wire import Message, WireError
from swiftchat.engine.server import serve
from swiftchat.engine.server.serve import EngineServer
from swiftchat.errors import UsageError


class Terminal:
    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)


class ScriptedEngine:
    """Its next step has these outcomes."""

    has_work = True

    def __init__(self) -> None:
        self.outcomes: list[Any] = []

    def add(self, *arguments: object) -> None:
        return

    def step(self) -> list[Any]:
        return self.outcomes


class Served:
    """Three answers of one terminal, with the ids 1 to 3, and one of another with the id 7."""

    def __init__(self) -> None:
        self.server, self.engine = EngineServer(), ScriptedEngine()
        self.first, self.second = Terminal(), Terminal()
        for terminal, id_ in ((self.first, 1), (self.first, 2), (self.second, 7), (self.first, 3)):
            command = {"id": id_, "prompt": [1], "params": SamplingParams().to_wire()}
            self.server._generate(self.engine, terminal, command)  # type: ignore[arg-type]

    def step(self, *outcomes: Any) -> tuple[list[Message], list[Message]]:
        self.first.sent, self.second.sent = [], []
        self.engine.outcomes = list(outcomes)
        self.server._step(self.engine)  # type: ignore[arg-type]
        return self.first.sent, self.second.sent


FINISHED = Finished("stop", 1, 0, 1, 0.1, 0.1, 5, warnings=[])


def test_each_terminal_gets_one_message_with_its_own() -> None:
    served = Served()
    (one,), (other,) = served.step(
        (1, Tokens([5])), (2, Prefill(1, 2)), (3, Tokens([6])), (4, Tokens([7])), (4, FINISHED)
    )
    assert one["type"] == "several" and other == Tokens([6]).to_wire(7)
    found = [(m["id"], protocol.event_from(m)) for m in wire.messages_of(one)]
    assert found == [(1, Tokens([5])), (2, Prefill(1, 2)), (3, Tokens([7])), (3, FINISHED)]
    assert served.step((1, UsageError("wrong")))[0][0]["type"] == "error"


def test_a_message_does_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_MAX_TOGETHER", 2)
    served = Served()
    events = [(1, Tokens([5])), (2, Tokens([6])), (4, Tokens([7])), (1, Tokens([8]))]
    sent, _ = served.step(*events)
    assert [len(wire.messages_of(one)) for one in sent] == [2, 2]
    long = [(1, Embedding([1.0])), (2, Embedding([2.0])), (2, FINISHED)]
    sent, _ = served.step(*long)
    found = [m["type"] for one in sent for m in wire.messages_of(one)]
    assert len(sent) == 3 and found == ["embedding", "embedding", "finished"]


@pytest.mark.parametrize("messages", [None, 5, [1], [{}], [{"type": 1}]])
def test_invalid_messages_are_an_error(messages: Any) -> None:
    with pytest.raises(WireError):
        wire.messages_of({"type": "several", "messages": messages})
