"""An engine that sends damaged, oversized or endless frames: the chat goes on.

The engine, at a Unix socket, answers each message with such bytes on a new connection, and at last
with an answer.
"""

import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import msgpack
import pytest

from swiftchat.engine.api import protocol, wire
from swiftchat.engine.api.model_files import read_piece, text_files
from swiftchat.engine.api.protocol import EngineInfo, Finished, Tokens
from swiftchat.engine.api.wire import Message
from tests.support import fake_engine
from tests.support.serve_processes import SWIFTCHAT
from tests.support.terminal import Terminal

INFO = EngineInfo("fake", "float32", 1000, 4000, 512, 8000, 256, 1, 0.125)


def frame(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


def message(value: object) -> bytes:
    return frame(msgpack.packb(value))


FRAMES: dict[str, bytes] = {
    "no MessagePack": frame(b"\xc1\xc1\xc1"),
    "an unknown type": message({"type": "surprise", "id": 1}),
    "a generation that is not there": message({"type": "tokens", "id": 99, "ids": [1]}),
    "an announced exabyte": struct.pack("!iQ", -1, 1 << 60) + b"x",
    "an endless frame": struct.pack("!i", 1 << 20) + b"x",
    "nested lists": frame(b"\x91" * 100_000),
}


class Engine:
    """Answers the first messages with `wrong`, and every message after them with "Fine."."""

    def __init__(self, folder: Path, path: Path, wrong: Sequence[bytes]) -> None:
        self._folder, self._wrong = folder, list(wrong)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen()
        self.num_sessions = 0

    def run(self) -> None:
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self, connected: socket.socket) -> None:
        connection = Connection(connected.detach())
        try:
            while True:
                self._answer(connection, wire.receive(connection))
        except (EOFError, OSError):  # the chat has dropped the connection
            connection.close()

    def _answer(self, connection: Connection, received: Message) -> None:
        match received["type"]:
            case "hello":
                files = [file.to_wire() for file in text_files(self._folder)]
                welcome = {"type": "welcome", "version": protocol.VERSION, "name": "m"}
                wire.send(connection, {**welcome, "files": files})
            case "file":
                data = read_piece(self._folder, received["name"], received["start"])
                wire.send(connection, {"type": "file", "data": data})
            case "begin":
                self.num_sessions += 1
                wire.send(connection, INFO.to_wire())
            case "generate" if self._wrong:
                _write(connection, self._wrong.pop(0))
            case "generate":
                number = received["id"]
                wire.send(connection, Tokens(list(b"Fine.")).to_wire(number))
                finished = Finished("stop", len(received["prompt"]), 0, 5, 0.1, 0.1, 7)
                wire.send(connection, finished.to_wire(number))


def _write(connection: Connection, data: bytes) -> None:
    duplicate = socket.socket(fileno=connection.fileno())
    try:
        duplicate.sendall(data)
    finally:
        duplicate.detach()


@contextmanager
def engine_at(folder: Path, path: Path, wrong: Sequence[bytes]) -> Iterator[Engine]:
    engine = Engine(folder, path, wrong)
    thread = threading.Thread(target=engine.run, daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        engine.close()
        thread.join()


@pytest.mark.fault(46)
def test_the_chat_goes_on_with_a_new_connection(tmp_path: Path) -> None:
    folder, path = fake_engine.make_folder(tmp_path / "model"), tmp_path / "engine"
    with engine_at(folder, path, list(FRAMES.values())) as engine:
        terminal = Terminal(SWIFTCHAT[0], [*SWIFTCHAT[1:], "--connect", str(path)], 250)
        terminal.wait_for(">>>", 60)
        terminal.type_now("one")
        for name in FRAMES:
            start = len(terminal.raw)
            terminal.type("\r")

            def is_told(text: str, start: int = start) -> bool:
                return b"hint: " in terminal.raw[start:] and text.rstrip().endswith(">>> one")

            terminal.wait_for(is_told, 120)
            output = terminal.raw[start:].decode()
            assert output.count("error: ") == output.count("hint: ") == 1, (name, output)
            assert "engine" in output.partition("error: ")[2], (name, output)
        terminal.type("\r")
        terminal.wait_for("Fine.", 60)
        terminal.type("\x04")
        assert terminal.wait_end() == 0
        assert b"Traceback" not in terminal.raw and engine.num_sessions == len(FRAMES) + 1
