"""A directory that appears under its name whole or not at all."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swiftchat.errors import FileSystemError
from swiftchat.weights.files.disk import disk_full

__all__ = ["appearing", "as_file_system_error"]


@contextmanager
def appearing(destination: Path) -> Iterator[Path]:
    """A new sibling directory, renamed to `destination` at the end or removed on any failure."""
    prefix = f".{destination.name}."
    for stale in destination.parent.glob(f"{_escaped(prefix)}*.partial"):
        # Left by a process that was killed: whoever holds the lock is alone here.
        shutil.rmtree(stale)
    directory = Path(tempfile.mkdtemp(prefix=prefix, suffix=".partial", dir=destination.parent))
    try:
        yield directory
        for file in filter(Path.is_file, directory.rglob("*")):
            _flush(file)
        directory.chmod(0o777 & ~_umask())
        directory.rename(destination)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _flush(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


@contextmanager
def as_file_system_error(destination: Path, needed_bytes: int) -> Iterator[None]:
    """Turn what the system says into a `FileSystemError`; a full disk says how much is needed."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free_bytes = shutil.disk_usage(destination.parent).free
            raise disk_full(destination, needed_bytes, free_bytes) from error
        raise FileSystemError(f"cannot convert to {destination}: {error}") from error
