"""The listening socket of an engine: authenticates terminals and sends them the model's files."""

import contextlib
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from swiftchat.engine.api import protocol
from swiftchat.engine.api.address import Address, set_tcp_options
from swiftchat.engine.api.model_files import TextFile, read_piece
from swiftchat.engine.api.protocol import MAX_MESSAGE_BYTES, VERSION, Message
from swiftchat.engine.server.connection import TerminalConnection
from swiftchat.engine.server.serve import EngineServer
from swiftchat.errors import DeviceError, FileSystemError, SwiftchatError, UsageError

_HEARTBEAT_S = 1.0
_MAX_TERMINALS = 16
# Limits for connections before they are authenticated: number, time and size of the hello.
_MAX_HANDSHAKES, _HANDSHAKE_S, _MAX_HELLO_BYTES = 16, 5.0, 4096
_SEND_TIMEOUT_S = 5  # for a terminal to read a message
_TOKEN_BYTES = 32


class Listener:
    """Accepts terminals for an `EngineServer`, on threads of its own after `open`.

    It listens from construction on. A TCP socket, on loopback, requires a token, which is
    written to `token_file`; a Unix socket has mode 0600 and requires none. A connection without
    the right token is closed without an answer. Terminals may fetch the `files` of `directory`.
    """

    def __init__(
        self,
        address: Address,
        token_file: Path | None,
        server: EngineServer,
        name: str,
        directory: Path,
        files: Sequence[TextFile],
    ) -> None:
        self._server, self._directory = server, directory
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
        self._handshakes = threading.Semaphore(_MAX_HANDSHAKES)

    def open(self) -> None:
        """Start accepting terminals and sending heartbeats."""
        for work in (self._accept, self._send_heartbeats):
            threading.Thread(target=work, name="listener", daemon=True).start()

    def close(self) -> None:
        """Stop listening; remove the Unix socket and the token file. Terminals stay connected."""
        with contextlib.suppress(OSError):  # wakes the accepting thread; fails on macOS
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for path in (self.address.path, self.token_file):
            if path is not None:
                with contextlib.suppress(OSError):  # already removed
                    path.unlink()

    def _send_heartbeats(self) -> None:
        while True:
            time.sleep(_HEARTBEAT_S)
            self._server.send_heartbeat()

    def _accept(self) -> None:
        while True:
            self._handshakes.acquire()
            try:
                connected, _ = self._socket.accept()
            except OSError:
                self._handshakes.release()
                if self._socket.fileno() < 0:
                    return
                time.sleep(0.1)  # out of file descriptors, or the peer has disconnected
                continue
            threading.Thread(target=self._receive, args=(connected,), daemon=True).start()

    def _receive(self, connected: socket.socket) -> None:
        with connected:
            terminal = TerminalConnection(connected, _MAX_HELLO_BYTES)
            try:
                is_authenticated = self._authenticate(terminal)
            finally:
                self._handshakes.release()
            if is_authenticated:
                self._serve(connected, terminal)
            terminal.close()

    def _authenticate(self, terminal: TerminalConnection) -> bool:
        """Receive the hello and check its token and version; return whether they are right."""
        timeout = threading.Timer(_HANDSHAKE_S, terminal.close)
        timeout.start()
        try:
            hello = terminal.receive()
        except (EOFError, OSError):
            return False
        finally:
            timeout.cancel()
        if not self._has_token(hello) or hello["type"] != "hello":
            return False
        refusal = self._refusal(hello)
        if refusal is not None:
            terminal.send(protocol.error_message(refusal))
        return refusal is None

    def _has_token(self, hello: Message) -> bool:
        if self._token is None:
            return True
        token = hello.get("token")
        return isinstance(token, str) and secrets.compare_digest(
            token.encode("utf-8", "replace"), self._token.encode()
        )

    def _refusal(self, hello: Message) -> SwiftchatError | None:
        if hello.get("version") != VERSION:
            return UsageError(
                "the engine uses another version of the protocol",
                "use the same version of swiftchat on both sides",
            )
        if self._server.num_terminals >= _MAX_TERMINALS:
            return DeviceError(
                f"the engine already has {_MAX_TERMINALS} terminals", "disconnect one of them"
            )
        return None

    def _serve(self, connected: socket.socket, terminal: TerminalConnection) -> None:
        terminal.max_bytes = MAX_MESSAGE_BYTES
        send_timeout = _SEND_TIMEOUT_S.to_bytes(8, sys.byteorder) + bytes(8)  # a struct timeval
        try:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, send_timeout)
            if self.address.path is None:
                set_tcp_options(connected)
            terminal.send(self._welcome)
            # First requests for model files; "begin" starts the same session as a local one.
            while (message := terminal.receive())["type"] == "file":
                terminal.send(self._file_piece(message))
        except (EOFError, OSError):
            return
        if message["type"] == "begin":
            self._server.serve(terminal)

    def _file_piece(self, message: Message) -> Message:
        match message:
            case {"name": str() as name, "start": int() as start} if name in self._sizes:
                start = min(max(start, 0), self._sizes[name])
                return {"type": "file", "data": read_piece(self._directory, name, start)}
        return protocol.error_message(UsageError("the model has no such file"))


def _write_secret(path: Path, secret: str) -> None:
    """Write a new file that only this user can read, replacing an existing one."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.touch(0o600, exist_ok=False)
        path.write_text(secret + "\n")
    except OSError as error:
        raise FileSystemError(f"cannot write the token to {path}: {error.strerror}") from error
