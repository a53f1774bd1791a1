"""A connection to an engine that runs on its own, on this machine or behind `ssh -L`."""

import contextlib
import hashlib
import os
import re
import shutil
import socket
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from swiftchat.engine.api import protocol, wire
from swiftchat.engine.api.address import Address
from swiftchat.engine.api.model_files import TextFile, digest, files_from_wire
from swiftchat.engine.api.protocol import EngineStatus
from swiftchat.engine.api.wire import Message, WireError
from swiftchat.errors import BadModelFile, DeviceError, FileSystemError, UsageError

_CONNECT_S, _ANSWER_S = 10.0, 30.0
# Checks, one a second, without any message after which the engine is given up. It sends a
# heartbeat every second, but not while loading holds the interpreter lock.
_MAX_SILENT_CHECKS, _MAX_SILENT_CHECKS_LOADING = 5, 60


class RemoteEngine:
    """A connection to the engine at `address`; an `EngineConnection`.

    `name` and `files` describe the model. Raises `DeviceError` if no engine answers within
    `answer_s` or it rejects the token, and the error that the engine returns. `restart_hint` is
    the hint of errors about the engine's end.
    """

    def __init__(
        self,
        address: Address,
        token: str | None,
        answer_s: float = _ANSWER_S,
        restart_hint: str = protocol.REMOTE_RESTART_HINT,
    ) -> None:
        self.address, self.socket_path = address, address.path
        self._answer_s, self._restart_hint = answer_s, restart_hint
        self._silent_checks = 0
        try:
            self.socket = address.connect(min(_CONNECT_S, answer_s))
        except (OSError, UnicodeError) as error:
            raise DeviceError(
                f"no engine answers at {address}: {getattr(error, 'strerror', None) or error}",
                "check that the engine runs; from another machine: ssh -L PORT:127.0.0.1:PORT HOST",
            ) from error
        self.connection = Connection(os.dup(self.socket.fileno()))
        try:
            self._handshake(token)
        except BaseException:
            self.close()
            raise

    def _handshake(self, token: str | None) -> None:
        # The peer may be any program, and may send anything or nothing.
        hello = {"type": "hello", "version": protocol.VERSION, "token": token}
        welcome = self._request(hello)
        match welcome:
            case {"type": "welcome", "name": str() as name, "files": list() as files}:
                self.name = name
                self.files = files_from_wire(files)
            case _:
                raise DeviceError(f"the program at {self.address} is not a swiftchat engine")

    def fetch_model_files(self, cache: Path) -> Path:
        """Return a folder below `cache` with the model's text files; fetch them if it is missing.

        Raises `BadModelFile` for files that do not match their digest, and `FileSystemError`.
        """
        name = re.sub(r"[^A-Za-z0-9._-]", "_", self.name.rstrip("/").rpartition("/")[2])[:80]
        # A leading dot would hide the folder, and ".." would leave the cache.
        folder = cache / digest(self.files)[:32] / (name.lstrip(".") or "model")
        if not folder.is_dir():
            try:
                self._fetch(folder)
            except OSError as error:
                raise FileSystemError(
                    f"cannot store the model's tokenizer in {folder}: {error.strerror}"
                ) from error
        return folder

    def status(self) -> EngineStatus:
        """Return what `swiftchat ps` shows. Raises `DeviceError` if the engine does not answer."""
        answer = self._request({"type": "status"})
        try:
            return EngineStatus.from_wire(answer)
        except WireError as error:
            raise DeviceError(f"{self.address} sent an invalid status: {error}") from error

    def stop(self) -> None:
        """Have the engine end, and wait until it has closed the connection.

        Raises `DeviceError` if it does not.
        """
        with contextlib.suppress(OSError, EOFError):  # it has just ended
            wire.send(self.connection, {"type": "stop"})
            if not self.connection.poll(self._answer_s):
                raise DeviceError(f"the engine at {self.address} does not end")
            while True:
                wire.receive(self.connection)

    def start_session(self, keep_alive_s: float | None = None) -> None:
        """Have the engine send its state and accept requests.

        One that ends without use stays at least `keep_alive_s`.
        """
        with contextlib.suppress(OSError):  # it has ended; the reader thread reports that
            wire.send(self.connection, {"type": "begin", "keep_alive_s": keep_alive_s})

    def _fetch(self, folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            unfinished = Path(temporary) / "model"
            unfinished.mkdir()
            for file in self.files:
                path = unfinished / file.name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(self._content(file))
            with contextlib.suppress(FileExistsError):
                shutil.move(unfinished, folder)

    def _content(self, file: TextFile) -> bytes:
        content = bytearray()
        while len(content) < file.size_bytes:
            answer = self._request({"type": "file", "name": file.name, "start": len(content)})
            data = answer.get("data")
            if answer["type"] != "file" or not isinstance(data, bytes) or not data:
                break
            content += data
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise BadModelFile(
                f"{file.name} received from the engine does not match its digest",
                "the model may have changed since the engine was started: restart the engine",
            )
        return bytes(content)

    def _request(self, message: Message) -> dict[str, Any]:
        try:
            wire.send(self.connection, message)
            answer = wire.receive_within(self.connection, self._answer_s, wire.MAX_MESSAGE_BYTES)
        except TimeoutError as error:
            raise DeviceError(f"no answer from {self.address} in {self._answer_s:.0f} s") from error
        except (EOFError, OSError) as error:
            raise DeviceError(
                f"{self.address} closed the connection",
                "check that --token-file is this engine's and that the engine still runs",
            ) from error
        if answer["type"] == "error" and message["type"] == "hello":
            try:
                refusal = protocol.error_from(answer)
            except WireError as error:
                raise DeviceError(f"{self.address} is not a swiftchat engine: {error}") from error
            raise refusal
        return answer

    def check(self, is_ready: bool, received: bool) -> DeviceError | None:
        """Return an error if the engine has sent nothing, not even a heartbeat, for too long."""
        self._silent_checks = 0 if received else self._silent_checks + 1
        allowed = _MAX_SILENT_CHECKS if is_ready else _MAX_SILENT_CHECKS_LOADING
        if self._silent_checks < allowed:
            return None
        return DeviceError(
            f"the engine at {self.address} has sent nothing for {self._silent_checks} s",
            self._restart_hint,
        )

    def exit_reason(self) -> DeviceError:
        return DeviceError(
            f"the connection to the engine at {self.address} was lost", self._restart_hint
        )

    def kill(self) -> None:
        """Disconnect."""
        with contextlib.suppress(OSError):  # already disconnected
            self.socket.shutdown(socket.SHUT_RDWR)

    def wait_ended(self) -> None:
        """Do nothing: the engine goes on."""

    def close(self) -> None:
        self.kill()


def connect_engine(address: str, token: str | None) -> RemoteEngine:
    """Connect to the engine at HOST:PORT or a path; raises as `RemoteEngine`, and `UsageError`."""
    return RemoteEngine(Address.parse(address), token)


def read_token(file: Path | None, address: str) -> str | None:
    """Read the token for an engine from `file` or, without one, the port's default token file.

    None for a Unix socket without `file`. Raises `UsageError` if the file cannot be read.
    """
    parsed = Address.parse(address)
    if parsed.path is not None and file is None:
        return None
    path = file or parsed.token_file
    try:
        return path.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(
            f"cannot read the engine's token in {path}: {reason}",
            "start the engine first; for an engine on another machine, copy its token file to this "
            "one and name it with --token-file",
        ) from error
