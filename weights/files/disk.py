"""Room on the disk, asked for before anything is written."""

import shutil
from pathlib import Path

from swiftchat.errors import FileSystemError

__all__ = ["disk_full", "require_space"]


def require_space(destination: Path, needed_bytes: int) -> None:
    """Raise `FileSystemError` unless so much is free beside `destination`, which need not exist."""
    free_bytes = shutil.disk_usage(destination.parent).free
    if free_bytes < needed_bytes:
        raise disk_full(destination, needed_bytes, free_bytes)


def disk_full(destination: Path, needed_bytes: int, free_bytes: int) -> FileSystemError:
    """The error that says how much is needed and how much is free."""
    unit_bytes, unit = (1e9, "GB") if needed_bytes >= 1e8 else (1e6, "MB")
    return FileSystemError(
        f"not enough room for {destination}: {needed_bytes / unit_bytes:.2f} {unit} needed, "
        f"{free_bytes / unit_bytes:.2f} {unit} free",
        "free some space or choose another place",
    )
