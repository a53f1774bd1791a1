"""Writing large files: free disk space, atomic directories, progress."""

import errno
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from swiftchat.errors import FileSystemError

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Progress = Callable[[str, int, int], None]
"""Called with a label, the bytes done and the total bytes."""


def free_bytes(path: Path) -> int:
    """Return the free bytes on the disk of a path, which need not exist."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    return shutil.disk_usage(existing).free


def require_space(destination: Path, needed_bytes: int) -> None:
    """Raise `FileSystemError` unless `needed_bytes` are free on the disk of `destination`."""
    free = free_bytes(destination)
    if free < needed_bytes:
        raise disk_full(destination, needed_bytes, free)


def disk_full(destination: Path, needed_bytes: int, free_bytes: int) -> FileSystemError:
    """Return the error with the needed and the free space."""
    unit_bytes, unit = (1e9, "GB") if needed_bytes >= 1e8 else (1e6, "MB")
    return FileSystemError(
        f"not enough disk space for {destination}: {needed_bytes / unit_bytes:.2f} {unit} needed, "
        f"{free_bytes / unit_bytes:.2f} {unit} free",
        "free some space (swiftchat list shows what models take), or choose another destination: "
        "HF_HOME for downloads, XDG_DATA_HOME for models that are quantized as they arrive",
    )


def is_disk_full(error: OSError) -> bool:
    """Return whether a disk, a quota or a limit of the size of files is exhausted."""
    return error.errno in _DISK_FULL


@contextmanager
def atomic_directory(destination: Path) -> Iterator[Path]:
    """Create a directory that appears as `destination` complete or not at all.

    Yields a new sibling directory, which is renamed at the end or removed on any failure. The
    caller must hold the lock of `destination`.
    """
    prefix = f".{destination.name}."
    for stale in destination.parent.glob(f"{glob.escape(prefix)}*.partial"):
        # Left by a killed process; the lock excludes a running one.
        shutil.rmtree(stale)
    directory = Path(tempfile.mkdtemp(prefix=prefix, suffix=".partial", dir=destination.parent))
    try:
        yield directory
        flush_files(directory)
        directory.chmod(0o777 & ~_umask())
        directory.rename(destination)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def flush_files(directory: Path) -> None:
    """Wait until the files in a directory are on the disk."""
    for file in filter(Path.is_file, directory.rglob("*")):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


@contextmanager
def as_file_system_error(destination: Path, needed_bytes: int) -> Iterator[None]:
    """Turn an OSError into a `FileSystemError`; for a full disk it has the needed space."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            free_bytes = shutil.disk_usage(destination.parent).free
            raise disk_full(destination, needed_bytes, free_bytes) from error
        raise FileSystemError(f"cannot write {destination}: {error}") from error
