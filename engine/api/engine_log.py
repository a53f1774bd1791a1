"""The log of an engine that stays: what its process would print on a terminal."""

import os
from pathlib import Path
from typing import IO

import platformdirs

from swiftchat.errors import FileSystemError
from swiftchat.weights.files.private import create_private_folder, open_private

MAX_LOG_BYTES = 1 << 18
_KEPT_BYTES = 1 << 16


def log_path(socket: Path) -> Path:
    """Return the path of the log of the engine that listens at `socket`."""
    return platformdirs.user_state_path("swiftchat") / "engines" / f"{socket.stem}.log"


def open_log(socket: Path) -> IO[bytes]:
    """Open the log, a private file; raises `FileSystemError` if it cannot be written."""
    path = log_path(socket)
    try:
        create_private_folder(path.parent)
        return os.fdopen(open_private(path, os.O_RDWR | os.O_APPEND), "r+b", buffering=0)
    except OSError as error:
        raise FileSystemError(f"cannot write {path}: {error.strerror}") from error


def shorten_log(descriptor: int) -> None:
    """Keep only the end of a log that has become too long; other files stay as they are.

    What is written at the same moment may be lost.
    """
    size_bytes = os.fstat(descriptor).st_size
    if size_bytes > MAX_LOG_BYTES:
        end = os.pread(descriptor, _KEPT_BYTES, size_bytes - _KEPT_BYTES)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, end)  # appends, as every process does that has the file
