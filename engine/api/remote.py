"""A terminal's connection to an engine that runs by itself, here or behind `ssh -L`. No torch."""

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

from swiftchat.engine.api import protocol
from swiftchat.engine.api.address import Address
from swiftchat.engine.api.model_files import TextFile, digest
from swiftchat.engine.api.protocol import Message
from swiftchat.errors import BadModelFile, DeviceError, FileSystemError, UsageError

_CONNECT_S, _ANSWER_S = 10.0, 30.0
# Looks, one a second, that find that an engine has said nothing: it says every second that it is
# alive, though not while it holds all threads for loading.
_SILENT_LOOKS, _SILENT_LOOKS_LOADING = 5, 60


class RemoteEngine:
    """Lets itself in at an address, as `engine.api.client.EngineConnection`.

    `name` and `files` are the model's. Raises `DeviceError` where no engine answers or the token
    is not its own, and what the engine answers.
    """

    def __init__(self, address: Address, token: str | None) -> None:
        self.address = address
        self._silent_looks = 0
        try:
            self.socket = address.connect(_CONNECT_S)
        except (OSError, UnicodeError) as error:
            raise DeviceError(
                f"no engine answers at {address}: {getattr(error, 'strerror', None) or error}",
                "is it running there? From elsewhere: ssh -L PORT:127.0.0.1:PORT HOST",
            ) from error
        self.connection = Connection(os.dup(self.socket.fileno()))
        try:
            self._enter(token)
        except BaseException:
            self.close()
            raise

    def _enter(self, token: str | None) -> None:
        # Until here whoever answers may be anything, and need not say a word.
        hello = {"type": "hello", "version": protocol.VERSION, "token": token}
        welcome = self._ask(hello)
        match welcome:
            case {"type": "welcome", "name": str() as name, "files": list() as files}:
                self.name = name
                self.files = [TextFile.from_wire(wire) for wire in files]
            case _:
                raise DeviceError(f"what answers at {self.address} is no engine of swiftchat's")

    def fetch_model_files(self, cache: Path) -> Path:
        """A folder below `cache` with the model's files but its weights, fetched if need be.

        Raises `BadModelFile` for files that are not what was announced, `FileSystemError`.
        """
        name = re.sub(r"[^A-Za-z0-9._-]", "_", self.name.rstrip("/").rpartition("/")[2])[:80]
        # Nobody's file is called like this: no name leads out of the folder, or hides.
        folder = cache / digest(self.files)[:32] / (name.lstrip(".") or "model")
        if not folder.is_dir():
            try:
                self._fetch(folder)
            except OSError as error:
                words = f"cannot keep the model's tokenizer in {folder}: {error.strerror}"
                raise FileSystemError(words) from error
        return folder

    def begin(self) -> None:
        """Have the engine take commands, and tell how it stands with it."""
        with contextlib.suppress(OSError):  # gone: who reads hears so
            protocol.send(self.connection, {"type": "begin"})

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
            answer = self._ask({"type": "file", "name": file.name, "start": len(content)})
            data = answer.get("data")
            if answer["type"] != "file" or not isinstance(data, bytes) or not data:
                break
            content += data
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise BadModelFile(
                f"{file.name} came otherwise than the engine announced it",
                "was the model changed since the engine was started?",
            )
        return bytes(content)

    def _ask(self, message: Message) -> dict[str, Any]:
        try:
            protocol.send(self.connection, message)
            if not self.connection.poll(_ANSWER_S):
                raise DeviceError(f"what answers at {self.address} says nothing")
            answer = protocol.receive(self.connection, protocol.MOST_BYTES)
        except (EOFError, OSError) as error:
            raise DeviceError(
                f"{self.address} hung up",
                "is it the token of this engine (--token-file), and does the engine still run?",
            ) from error
        if answer["type"] == "error" and message["type"] == "hello":
            raise protocol.error_from(answer)
        return answer

    def look(self, is_ready: bool, heard: bool) -> DeviceError | None:
        self._silent_looks = 0 if heard else self._silent_looks + 1
        if self._silent_looks < (_SILENT_LOOKS if is_ready else _SILENT_LOOKS_LOADING):
            return None
        return DeviceError(
            f"the engine at {self.address} has said nothing for {self._silent_looks} s",
            protocol.ENDED_HINT,
        )

    def obituary(self) -> DeviceError:
        return DeviceError(
            f"the engine at {self.address} is gone: its connection ended", protocol.ENDED_HINT
        )

    def kill(self) -> None:
        with contextlib.suppress(OSError):  # it was gone
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.kill()


def connect_engine(address: str, token: str | None) -> RemoteEngine:
    """Attach to the engine at HOST:PORT or a path; what `RemoteEngine` raises, `UsageError`."""
    return RemoteEngine(Address.parse(address), token)


def read_token(file: Path | None, address: str) -> str | None:
    """The token for an address: of a file, or of where an engine at that port leaves it.

    None for a Unix socket, which needs none. Raises `UsageError` where it is not found.
    """
    place = Address.parse(address)
    if place.path is not None and file is None:
        return None
    path = file or place.token_file
    try:
        return path.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(
            f"cannot read the engine's token in {path}: {reason}",
            "an engine leaves it there as long as it runs; if that is elsewhere, copy the file "
            "that it named when it started, and give it with --token-file",
        ) from error
