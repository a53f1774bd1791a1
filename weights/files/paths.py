"""Paths that a user types."""

import errno
from pathlib import Path

from swiftchat.errors import FileSystemError

__all__ = ["user_path"]


def user_path(text: str) -> Path:
    """Return the path with `~` and `~NAME` replaced by home folders.

    Raises `FileSystemError` for the home folder of an unknown user, and for a name that is too long
    for the system.
    """
    try:
        path = Path(text).expanduser()
        path.lstat()
    except RuntimeError:
        name = Path(text).parts[0]
        raise FileSystemError(
            f"{text}: there is no home folder {name}", "write the path without ~"
        ) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise FileSystemError(
                f"{text[:40]}…: {error.strerror}", "give a shorter path"
            ) from error
    except ValueError:  # a null character; no such file exists
        pass
    return path
