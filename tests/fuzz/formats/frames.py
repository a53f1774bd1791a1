"""Frames between a terminal and an engine, in both directions, and those of a remote engine."""

import contextlib
import random
import socket
import struct
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgpack

from swiftchat.engine.api import protocol
from swiftchat.engine.api.address import Address
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import EngineInfo, EngineStatus, Finished, Logprob
from swiftchat.engine.api.reasoning import ReasoningMarkers
from swiftchat.engine.api.remote import RemoteEngine
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.api.wire import Message
from swiftchat.engine.server.listener import Listener
from swiftchat.engine.server.serve import EngineServer
from swiftchat.errors import DeviceError
from tests.fuzz.mutations import mutate_tree, odd_value
from tests.fuzz.target import Target

_INFO = EngineInfo("cpu", "float32", 1, 1, 64, 1, 64, 1, 0.5)
_SPECULATED = protocol.Speculated("ngram", 1, 2, 1, 1.2)
_FINISHED = Finished("stop", 3, 0, 2, 0.1, 0.2, 7, _SPECULATED, warnings=["w"])
_ANSWERS: list[Message] = [
    {"type": "progress", "label": "loading weights", "done": 1, "total": 2},
    _INFO.to_wire(),
    {"type": "alive"},
    {"type": "prefill", "id": 1, "done": 1, "total": 3},
    protocol.PromptLogprobs([Logprob(-1.0, [(3, -1.0)])]).to_wire(1),
    protocol.Tokens([5], [Logprob(-0.5, [(5, -0.5), (6, -1.5)])]).to_wire(1),
    protocol.Embedding([0.5, 1.0]).to_wire(1),
    protocol.Beam([5], -0.5, "length").to_wire(1),
    protocol.Dropped(3).to_wire(1),
    {"type": "stats", "num_blocks": 3},
    _FINISHED.to_wire(1),
]
_HINT = "use less"
_ERROR: list[Message] = [
    _INFO.to_wire(),
    protocol.error_message(DeviceError("no memory", _HINT), 1),
    {"type": "stats"},
]
_MARKERS = ReasoningMarkers((b"a",), b"b", is_open=True, pieces=((1, b"b"),), ending=(1,))
_PARAMS = SamplingParams(
    logit_bias=((3, 1.0),),
    bad_words=((1, 2),),
    stop_ids=(0,),
    seed=3,
    reasoning_budget=1,
    reasoning=_MARKERS,
)
_CONSTRAINT = {
    "grammar": "{}",
    "begun": "a",
    "pieces": [b"a", b"b"],
    "special": [0],
    "stop_ids": [1],
}
_TUNING = Tuning((("/some/where", 0.5),), "/a/prompt").to_wire()
_HELLO: list[Message] = [
    {"type": "hello", "version": protocol.VERSION, "token": None},
    {"type": "status"},
    {"type": "file", "name": "config.json", "start": 1},
]
_COMMANDS: list[Message] = [
    *_HELLO,
    {"type": "begin"},
    {"type": "generate", "id": 1, "prompt": [1, 2], "params": SamplingParams().to_wire()},
    {
        "type": "generate",
        "id": 2,
        "prompt": [1, 2],
        "params": _PARAMS.to_wire(),
        "constraint": _CONSTRAINT,
        "tuning": _TUNING,
    },
    {"type": "cancel", "id": 2},
    {"type": "stats", "measure": False},
]
_FILE = ["config.json", 2, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"]
_WELCOMES: list[Message] = [
    {"type": "welcome", "version": protocol.VERSION, "name": "a/tiny", "files": [_FILE]},
    EngineStatus("a/tiny", 1, 2, 0.5, 1).to_wire(),
    {"type": "file", "data": b"{}"},
]


def _stream(messages: list[Message]) -> bytes:
    return b"".join(_frame(msgpack.packb(message)) for message in messages)


def _frame(content: bytes) -> bytes:
    return struct.pack("!i", len(content)) + content


def _mutate(chance: random.Random, data: bytes) -> bytes:
    """Change values in messages, or leave out, repeat and exchange whole messages."""
    messages, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("!i", data, at)
        messages.append(msgpack.unpackb(data[at + 4 : at + 4 + length]))
        at += 4 + length
    for _ in range(chance.choice((1, 1, 2))):
        place = chance.randrange(len(messages))
        match chance.randrange(8):
            case 0:
                messages.insert(place, messages[chance.randrange(len(messages))])
            case 1 if len(messages) > 1:
                del messages[place]
            case 2:
                messages[place] = _odd_wire(chance)
            case _:
                messages[place] = mutate_tree(chance, messages[place], _odd_wire)
    return b"".join(_frame(_packed(message)) for message in messages)


def _odd_wire(chance: random.Random) -> Any:
    """Return a value that MessagePack has: also bytes, extensions, and keys that are no texts."""
    match chance.randrange(6):
        case 0:
            return chance.choice((b"", b"\xff", b"\0" * 8, msgpack.ExtType(3, b"x"), 2**64 - 1))
        case 1:
            return {chance.choice((1, None, b"k", "id")): odd_value(chance)}
        case _:
            return odd_value(chance)


def _packed(message: Any) -> bytes:
    try:
        packed: bytes = msgpack.packb(message, unicode_errors="surrogatepass")
    except (OverflowError, ValueError):  # an integer of more than 64 bits, too deep a tree
        return b"\xc1"
    return packed


class _Crashes(contextlib.AbstractContextManager["_Crashes"]):
    """Collects the exceptions that end other threads, and raises the first at the end."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def __enter__(self) -> "_Crashes":
        self._hook = threading.excepthook
        threading.excepthook = self._add
        return self

    def __exit__(self, *exc_info: object) -> None:
        threading.excepthook = self._hook
        self.raise_first()

    def raise_first(self) -> None:
        if self.errors:
            raise self.errors[0]

    def _add(self, arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None:
            self.errors.append(arguments.exc_value)


@dataclass
class _Engine:
    """An engine connection whose other end has sent everything; see `EngineConnection`."""

    socket: socket.socket
    crashes: _Crashes

    def __post_init__(self) -> None:
        self.connection = Connection(self.socket.dup().detach())

    def check(self, is_ready: bool, received: bool) -> DeviceError | None:
        self.crashes.raise_first()
        return None

    def exit_reason(self) -> DeviceError:
        return DeviceError("the engine has ended")

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def wait_ended(self) -> None:
        pass

    def close(self) -> None:
        pass


def _send_all(end: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the reader has given up
        end.sendall(data)
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_WR)


def _load_answers(data: bytes, folder: Path) -> Any:
    """Read an engine's messages as a terminal does that waits for an answer."""
    ours, theirs = socket.socketpair()
    with theirs, _Crashes() as crashes:
        client = EngineClient(EngineConfig(), Path("model"), _Engine(ours, crashes))
        client.start()
        try:
            generation = client.generate([1, 2, 3], SamplingParams())
            sender = threading.Thread(target=_send_all, args=(theirs, data), daemon=True)
            sender.start()
            try:
                events = list(generation)
            except DeviceError as error:
                if error.hint != _HINT:
                    raise
                events = []
            stats = client.stats()
            return client.info or client.wait_ready(), events, stats
        finally:
            client.close()
            sender.join()


class _Model:
    """What the server needs of an engine: it checks the types of what arrives."""

    has_work = True  # so that the server does not wait for commands
    has_unsaved = can_prepare = False

    def add(
        self, id_: int, prompt: list[int], params: SamplingParams, constraint: Any, tuning: Any
    ) -> None:
        assert all(type(one) is int and one >= 0 for one in (id_, *prompt))
        hash((params, constraint, tuning))
        _ = params.has_penalties, params.changes_logits, params.host_controls, params.sliding_keep

    def cancel(self, id_: int) -> None:
        assert type(id_) is int

    def stats(self, measure: bool) -> dict[str, Any]:
        return {"measure": measure}


def _load_commands(data: bytes, folder: Path) -> Any:
    """Serve a terminal from its greeting on, and execute its commands."""
    (folder / "config.json").write_text("{}")
    server = EngineServer()
    listener = Listener(Address(path=folder / "s"), None, server, "a/tiny", folder)
    ours, theirs = socket.socketpair()
    with theirs, _Crashes():
        sender = threading.Thread(target=_send_all, args=(theirs, data), daemon=True)
        sender.start()
        listener._handshakes.acquire()
        reader = threading.Thread(target=listener._receive, args=(ours,), daemon=True)
        reader.start()
        model = _Model()
        while reader.is_alive() or not server._commands.empty():
            server._execute_commands(model)
            reader.join(0.001)
        listener.close()
        sender.join()


def _load_handshake(data: bytes, folder: Path) -> Any:
    """Connect to something that may be no engine, and fetch the model's files from it."""
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as server, _Crashes():
        server.bind(str(path))
        server.listen(1)
        sender = threading.Thread(target=_accept, args=(server, data), daemon=True)
        sender.start()
        try:
            engine = RemoteEngine(Address(path=path), None, answer_s=5.0)
            try:
                status = None
                with contextlib.suppress(DeviceError):
                    status = engine.status()
                found = engine.fetch_model_files(folder / "cache")
                return status, sorted(one.name for one in found.iterdir())
            finally:
                engine.close()
                engine.connection.close()
        finally:
            sender.join()


def _accept(server: socket.socket, data: bytes) -> None:
    connected, _ = server.accept()
    with connected:
        _send_all(connected, data)
        with contextlib.suppress(OSError):
            while connected.recv(1 << 16):
                pass


FRAMES = (
    Target(
        "frames-of-engine",
        lambda: [_stream(_ANSWERS), _stream(_ERROR)],
        _mutate,
        _load_answers,
        1200,
    ),
    Target("frames-of-terminal", lambda: [_stream(_COMMANDS)], _mutate, _load_commands, 400),
    Target("frames-of-remote", lambda: [_stream(_WELCOMES)], _mutate, _load_handshake, 400),
)
