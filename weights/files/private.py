"""Files and folders that only the user can read, whatever the umask."""

import os
import stat
from pathlib import Path


def create_private_folder(folder: Path) -> None:
    """Create a folder and the missing ones above it with mode 0700.

    An existing `folder` gets this mode; existing folders above it stay as they are. Raises OSError.
    """
    if not folder.parent.exists():
        create_private_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) != 0o700:
        folder.chmod(0o700)


def open_private(file: Path, flags: int) -> int:
    """Open or create a file with mode 0600 and the `flags` of `os.open`; return its descriptor.

    Raises OSError.
    """
    descriptor = os.open(file, flags | os.O_CREAT, 0o600)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != 0o600:
            os.fchmod(descriptor, 0o600)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
