"""The listening socket of an engine: authenticates terminals and sends them the model's files."""

import contextlib
import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from swiftchat.engine.api import protocol
from swiftchat.engine.api.address import Address, set_tcp_options, write_token
from swiftchat.engine.api.model_files import read_piece, text_files
from swiftchat.engine.api.protocol import VERSION, EngineStatus
from swiftchat.engine.api.wire import MAX_MESSAGE_BYTES, Message
from swiftchat.engine.server.connection import TerminalConnection
from swiftchat.engine.server.serve import EngineServer
from swiftchat.errors import BadModelFile, DeviceError, SwiftchatError, UsageError

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
    the right token is closed without an answer. Terminals may fetch the text files of `directory`.
    `on_stop` is called when a terminal at a Unix socket asks the engine to end. `endpoint` is the
    URL of an HTTP endpoint in front of the engine. `listening` is the socket at the address, if the
    process has inherited it.
    """

    def __init__(
        self,
        address: Address,
        token_file: Path | None,
        server: EngineServer,
        name: str,
        directory: Path,
        on_stop: Callable[[], None] | None = None,
        endpoint: str | None = None,
        listening: socket.socket | None = None,
    ) -> None:
        self._server, self._directory, self._name = server, directory, name
        self._on_stop, self._endpoint = on_stop, endpoint
        files = text_files(directory)
        self._sizes = {file.name: file.size_bytes for file in files}
        self._welcome = {
            "type": "welcome",
            "version": VERSION,
            "name": name,
            "files": [file.to_wire() for file in files],
        }
        self._socket = listening or address.listen()
        self.token_file: Path | None = None
        self._token: str | None = None
        self.address = address
        if address.path is None:
            self.address = Address(address.host, self._socket.getsockname()[1])
            self._token = secrets.token_urlsafe(_TOKEN_BYTES)
            self.token_file = token_file or self.address.token_file
            write_token(self.token_file, self._token)
        self._handshakes = threading.Semaphore(_MAX_HANDSHAKES)
        self._num_connected, self._connected_lock = 0, threading.Lock()
        self._is_closed = False

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

    def close_if_unused(self) -> bool:
        """Stop listening unless a terminal is connected; return whether that was done.

        A terminal that connects at the same time is either counted or gets no `welcome`.
        """
        with self._connected_lock:
            if self._num_connected:
                return False
            self._is_closed = True
        self.close()
        return True

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
            if is_authenticated and self._join():
                try:
                    self._serve(connected, terminal)
                finally:
                    self._leave()
            terminal.close()

    def _join(self) -> bool:
        with self._connected_lock:
            self._num_connected += not self._is_closed
            return not self._is_closed

    def _leave(self) -> None:
        with self._connected_lock:
            self._num_connected -= 1

    def _authenticate(self, terminal: TerminalConnection) -> bool:
        """Receive the hello and check its token and version; return whether they are right."""
        try:
            hello = terminal.receive_within(_HANDSHAKE_S)
        except (EOFError, OSError):
            return False
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
            # First requests; "begin" starts the same session as a local one.
            while (message := terminal.receive())["type"] in ("file", "status"):
                is_file = message["type"] == "file"
                terminal.send(self._file_piece(message) if is_file else self._status())
        except (EOFError, OSError):
            return
        if message["type"] == "begin":
            self._server.keep_longer(_seconds(message.get("keep_alive_s")))
            self._server.serve(terminal)
        elif message["type"] == "stop" and self._token is None and self._on_stop is not None:
            self._on_stop()

    def _status(self) -> Message:
        state = self._server.state or {}
        info = state["info"] if state.get("type") == "ready" else {}
        return EngineStatus(
            name=self._name,
            pid=os.getpid(),
            memory_bytes=_memory_bytes(),
            idle_s=self._server.idle_s,
            num_terminals=self._server.num_guests,
            device=info.get("device", ""),
            device_bytes=info.get("weights_bytes", 0)
            - info.get("host_bytes", 0)
            + info.get("cache_bytes", 0),
            ctx_size_tokens=info.get("ctx_size_tokens", 0),
            keep_alive_s=self._server.keep_alive_s,
            ends_in_s=self._server.ends_in_s,
            endpoint=self._endpoint,
        ).to_wire()

    def _file_piece(self, message: Message) -> Message:
        match message:
            case {"name": str() as name, "start": int() as start} if name in self._sizes:
                start = min(max(start, 0), self._sizes[name])
                try:
                    return {"type": "file", "data": read_piece(self._directory, name, start)}
                except BadModelFile as error:
                    return protocol.error_message(error)
        return protocol.error_message(UsageError("the model has no such file"))


def _seconds(value: object) -> float:
    """Return the time that a terminal has sent, 0 for anything else."""
    return value if isinstance(value, float) and math.isfinite(value) else 0.0


def _memory_bytes() -> int:
    """Return the memory of this process and its children, the ranks."""
    process, total = psutil.Process(), 0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has just ended
            total += one.memory_info().rss
    return total
