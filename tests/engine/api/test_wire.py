"""Messages of an engine that are damaged: the client reports them and does not wait for more."""

import random
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgpack
import pytest

from swiftchat.engine.api import wire
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import (
    Beam,
    Dropped,
    EngineInfo,
    Finished,
    Logprob,
    Prefill,
    PromptLogprobs,
    Searching,
    Speculated,
    Tokens,
    event_from,
)
from swiftchat.engine.api.wire import WireError, decode
from swiftchat.errors import DeviceError, SwiftchatError

INFO = EngineInfo("cpu", "float32", 1, 1, 64, 1, 64, 1, 0.5)
FINISHED = Finished("stop", 3, 0, 2, 0.1, 0.2, 7, Speculated("ngram", 1, 2, 1, 1.2), warnings=["w"])
MESSAGES: list[dict[str, Any]] = [
    {"type": "progress", "label": "loading weights", "done": 1, "total": 2},
    INFO.to_wire(),
    Prefill(1, 3).to_wire(1),
    Searching(16).to_wire(1),
    PromptLogprobs([Logprob(-1.0, [(3, -1.0)])]).to_wire(1),
    Tokens([5], [Logprob(-0.5, [(5, -0.5), (6, -1.5)])]).to_wire(1),
    Beam([5], -0.5, "length").to_wire(1),
    {"type": "stats", "num_blocks": 3},
    FINISHED.to_wire(1),
]
ODD: list[Any] = [None, True, -1, 2**64 - 1, 0.5, "", "x", b"\xff", [], [[]], {}, {"id": 1}]


@dataclass
class Item:
    count: int
    ratio: float
    names: list[str] = field(default_factory=list)
    pair: tuple[int, str] | None = None


def test_values_of_the_annotated_types_are_decoded() -> None:
    wire = {"count": 1, "ratio": 2, "names": ["a"], "pair": [3, "b"], "unknown": 0}
    assert decode(wire, Item) == Item(1, 2.0, ["a"], (3, "b"))
    assert decode([{"count": 1, "ratio": 0.5}], list[Item]) == [Item(1, 0.5)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": True}, "count is of type bool"),
        ({"count": None}, "count is of type NoneType"),
        ({"names": "ab"}, "names is not a list"),
        ({"names": [1]}, "names is of type int"),
        ({"pair": [1]}, "pair"),
    ],
)
def test_other_values_raise_an_error_with_the_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(WireError, match=message):
        decode({"count": 1, "ratio": 0.5, **change}, Item)
    with pytest.raises(WireError, match="Item without ratio"):
        decode({"count": 1}, Item)


def test_events_return_as_they_were_sent() -> None:
    events = [Tokens([1, 2]), Dropped(3), FINISHED, PromptLogprobs([Logprob(-1.0, [(2, -1.0)])])]
    events += [Beam([4, 5], -0.5, "stop"), Searching(16), Prefill(1, 2)]
    for event in events:
        assert event_from(msgpack.unpackb(msgpack.packb(event.to_wire(1)))) == event


class PipeEngine:
    """An engine that is only a socket."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.connection = Connection(end.dup().detach())

    def check(self, is_ready: bool, received: bool) -> None:
        return None

    def exit_reason(self) -> DeviceError:
        return DeviceError("the connection was lost")

    def kill(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)

    def wait_ended(self) -> None:
        pass

    def close(self) -> None:
        pass


def damaged(rng: random.Random) -> bytes:
    """Return the frames of a session in which one message or one frame is damaged."""
    messages = [dict(message) for message in MESSAGES]
    target = rng.choice(messages)
    while isinstance(inner := target[key := rng.choice(list(target))], dict) and inner:
        target[key] = target = dict(inner)
    if rng.random() < 0.2:
        del target[key]
    else:
        target[key] = rng.choice(ODD)
    frames = [msgpack.packb(message) for message in messages]
    data = bytearray(b"".join(struct.pack("!i", len(frame)) + frame for frame in frames))
    for _ in range(rng.choice([0, 0, 1, 3])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def listen(frames: bytes, *, closes: bool = True) -> None:
    """Generate from an engine that sends these frames and then closes the connection."""
    here, there = socket.socketpair()
    with EngineClient(EngineConfig(), Path(), PipeEngine(here)) as client, there:  # type: ignore[arg-type]
        generation = client.generate([1, 2, 3], SamplingParams())
        there.sendall(frames)
        if closes:
            there.shutdown(socket.SHUT_WR)
        client.wait_ready()
        list(generation)
        client.stats()


def test_a_whole_session_is_understood() -> None:
    frames = [msgpack.packb(message) for message in MESSAGES]
    listen(b"".join(struct.pack("!i", len(frame)) + frame for frame in frames), closes=False)


@pytest.mark.fault(46)
def test_damaged_messages_are_errors() -> None:
    for seed in range(150):
        try:
            listen(damaged(random.Random(seed)))
        except SwiftchatError as error:
            assert isinstance(error, DeviceError) or type(error) is SwiftchatError, (seed, error)


@pytest.mark.fault(46)
def test_a_message_has_a_longest_length() -> None:
    size = struct.pack("!i", wire.MAX_MESSAGE_BYTES + 1)
    with pytest.raises(DeviceError, match="the connection was lost"):
        listen(size + b"x")


@pytest.mark.parametrize("is_late", [True, False])
def test_a_connection_is_shut_down_only_with_the_error_of_a_late_message(
    is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time ends while the message arrives, or just after it."""
    give_up: list[Callable[[], None]] = []

    class Timer(threading.Timer):
        def start(self) -> None:
            give_up.append(self.function)

        def cancel(self) -> None:
            if is_late:
                self.function()

    monkeypatch.setattr(threading, "Timer", Timer)
    own, peer = socket.socketpair()
    with own, peer, Connection(own.detach()) as connection, Connection(peer.detach()) as other:
        wire.send(other, {"type": "welcome"})
        if is_late:
            with pytest.raises(TimeoutError):
                wire.receive_within(connection, 1.0, 100)
            return
        assert wire.receive_within(connection, 1.0, 100) == {"type": "welcome"}
        give_up[0]()
        wire.send(connection, {"type": "stop"})
        assert wire.receive(other) == {"type": "stop"}
