"""Files that a user names for output: written through links, replaced only if they are files."""

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from swiftchat.errors import FileSystemError

# What stands here is an open file, not a name of one: `/dev/fd/3`, `/proc/self/fd/3`.
_DESCRIPTORS = ("/dev/fd", "/proc")


def is_stdout(path: Path) -> bool:
    """Return whether the path is `-` or what stdout writes to, as `/dev/stdout` is."""
    if str(path) == "-":
        return True
    if not path.is_absolute() or (path.parent == Path("/dev") and path.name != "stdout"):
        return False
    return _is_descriptor(path) and _same_as_stdout(path)


def is_stream(path: Path) -> bool:
    """Return whether the path is anything but a file or the place for a new one.

    A device, a FIFO, a socket or an open descriptor is written from its first byte to its last,
    and neither read, locked nor replaced.
    """
    with contextlib.suppress(OSError):  # opening it reports why
        return _is_descriptor(path) or not stat.S_ISREG(path.stat().st_mode)
    return False


@contextmanager
def open_output(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write all of it; it has the new content completely or stays as it was.

    A link stays, and what it points to is written; an existing file keeps its mode and its owner.
    A stream (`is_stream`) is written directly. Raises `FileSystemError`.
    """
    try:
        if is_stream(path):
            with path.open("ab") as stream:  # a descriptor may be of a file that has a beginning
                yield stream
            return
        with _replacing(Path(os.path.realpath(path))) as file:
            yield file
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> FileSystemError:
    return FileSystemError(f"cannot write {path}: {error.strerror or error}")


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    before = path.stat() if path.exists() else None
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with new.open("xb") as file:
            if before is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
                if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
            yield file
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _is_descriptor(path: Path) -> bool:
    """Return whether a path, or a link on the way to it, names an open file of a process."""
    for _ in range(8):
        if str(path.parent).startswith(_DESCRIPTORS):
            return True
        if not path.is_symlink():
            return False
        path = path.parent / path.readlink()
    return False


def _same_as_stdout(path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.path.samestat(path.stat(), os.fstat(sys.stdout.fileno()))
    return False
