"""Paths that a user types."""

from pathlib import Path

from swiftchat.errors import FileSystemError

__all__ = ["user_path"]


def user_path(text: str) -> Path:
    """Return the path with `~` and `~NAME` replaced by home folders.

    Raises `FileSystemError` for the home folder of an unknown user.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        name = Path(text).parts[0]
        raise FileSystemError(
            f"{text}: there is no home folder {name}", "write the path without ~"
        ) from None
