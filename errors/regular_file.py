"""Opening files that must be regular: those of models, which strangers have made."""

import errno
import os
import shlex
import stat
from pathlib import Path
from typing import BinaryIO

from swiftchat.errors import BadModelFile


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading that is a regular file, or a link to one.

    Raises `BadModelFile` for a FIFO, a socket or a device: reading it could wait for ever, or never
    end. Raises `OSError` for a folder, and for a file that cannot be opened.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO would wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _not_regular(path) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise _not_regular(path)


def _not_regular(path: Path) -> BadModelFile:
    return BadModelFile(
        f"{path} is not a regular file", f"ls -lL {shlex.quote(str(path))} shows what it is"
    )
