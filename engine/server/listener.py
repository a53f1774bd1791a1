"""Where terminals attach to an engine: a socket that lets in who has its token. No torch."""

import contextlib
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from swiftchat.engine.api import protocol
from swiftchat.engine.api.address import Address, answer_at_once
from swiftchat.engine.api.model_files import TextFile, piece
from swiftchat.engine.api.protocol import MOST_BYTES, VERSION, Message
from swiftchat.engine.server.connection import Terminal
from swiftchat.engine.server.serve import EngineServer
from swiftchat.errors import DeviceError, FileSystemError, SwiftchatError, UsageError

_ALIVE_S = 1.0
_MOST_TERMINALS = 16
# Who has not said its token yet: so many at a time, so long, and so much.
_MOST_STRANGERS, _STRANGER_S, _HELLO_BYTES = 16, 5.0, 4096
_STUCK_S = 5  # how long a terminal may not read what it is sent
_TOKEN_BYTES = 32


class Listener:
    """Listens at once, and lets terminals in from `open` on, on threads of its own.

    A TCP socket, on loopback, asks for a token, which is in `token_file`; a Unix socket asks for
    none: nobody else may connect to it. Who says anything else is hung up on without a word.
    `directory` has the model's `files`, which terminals may ask for.
    """

    def __init__(
        self,
        address: Address,
        token_file: Path | None,
        service: EngineServer,
        name: str,
        directory: Path,
        files: Sequence[TextFile],
    ) -> None:
        self._service, self._directory = service, directory
        self._sizes = {file.name: file.size_bytes for file in files}
        self._welcome = {
            "type": "welcome",
            "version": VERSION,
            "name": name,
            "files": [file.to_wire() for file in files],
        }
        self._socket = address.listen()
        self.token_file: Path | None = None
        self._token: str | None = None
        self.address = address
        if address.path is None:
            self.address = Address(address.host, self._socket.getsockname()[1])
            self._token = secrets.token_urlsafe(_TOKEN_BYTES)
            self.token_file = token_file or self.address.token_file
            _write_secret(self.token_file, self._token)
        self._strangers = threading.Semaphore(_MOST_STRANGERS)

    def open(self) -> None:
        for work in (self._accept, self._say_alive):
            threading.Thread(target=work, name="listener", daemon=True).start()

    def close(self) -> None:
        """Leave nothing behind; who is attached stays so."""
        with contextlib.suppress(OSError):  # macOS cannot; it wakes who accepts
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for path in (self.address.path, self.token_file):
            if path is not None:
                with contextlib.suppress(OSError):  # somebody was quicker
                    path.unlink()

    def _say_alive(self) -> None:
        while True:
            time.sleep(_ALIVE_S)
            self._service.say_alive()

    def _accept(self) -> None:
        while True:
            self._strangers.acquire()
            try:
                connected, _ = self._socket.accept()
            except OSError:
                self._strangers.release()
                if self._socket.fileno() < 0:
                    return
                time.sleep(0.1)  # out of descriptors, or it hung up at once
                continue
            threading.Thread(target=self._receive, args=(connected,), daemon=True).start()

    def _receive(self, connected: socket.socket) -> None:
        with connected:
            terminal = Terminal(connected, _HELLO_BYTES)
            try:
                is_known = self._knows(terminal)
            finally:
                self._strangers.release()
            if is_known:
                self._attend(connected, terminal)
            terminal.close()

    def _knows(self, terminal: Terminal) -> bool:
        """Whether it says the token, in time."""
        late = threading.Timer(_STRANGER_S, terminal.close)
        late.start()
        try:
            hello = terminal.receive()
        except (EOFError, OSError):
            return False
        finally:
            late.cancel()
        told = hello.get("token")
        if self._token is not None:
            right = self._token.encode()
            if not isinstance(told, str) or not secrets.compare_digest(
                told.encode("utf-8", "replace"), right
            ):
                return False
        if hello["type"] != "hello":
            return False
        refusal = self._refusal(hello)
        if refusal is not None:
            terminal.send(protocol.error_message(refusal))
        return refusal is None

    def _refusal(self, hello: Message) -> SwiftchatError | None:
        if hello.get("version") != VERSION:
            return UsageError(
                "the engine speaks another version of the protocol",
                "use the same version of swiftchat on both sides",
            )
        if self._service.num_terminals >= _MOST_TERMINALS:
            return DeviceError(
                f"{_MOST_TERMINALS} terminals are attached to the engine already",
                "end one of them first",
            )
        return None

    def _attend(self, connected: socket.socket, terminal: Terminal) -> None:
        terminal.most_bytes = MOST_BYTES
        stuck = _STUCK_S.to_bytes(8, sys.byteorder) + bytes(8)  # a struct timeval
        try:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, stuck)
            if self.address.path is None:
                answer_at_once(connected)
            terminal.send(self._welcome)
            # First the files that it lacks; then, with `begin`, what any terminal says.
            while (message := terminal.receive())["type"] == "file":
                terminal.send(self._piece(message))
        except (EOFError, OSError):
            return
        if message["type"] == "begin":
            self._service.serve(terminal)

    def _piece(self, message: Message) -> Message:
        match message:
            case {"name": str() as name, "start": int() as start} if name in self._sizes:
                start = min(max(start, 0), self._sizes[name])
                return {"type": "file", "data": piece(self._directory, name, start)}
        return protocol.error_message(UsageError("there is no such file"))


def _write_secret(path: Path, secret: str) -> None:
    """Into a file that nobody else may read, in place of what was there."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.touch(0o600, exist_ok=False)
        path.write_text(secret + "\n")
    except OSError as error:
        raise FileSystemError(f"cannot write the token to {path}: {error.strerror}") from error
