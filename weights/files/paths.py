"""Paths that a user types, and links in the folders of models."""

import errno
import os
from pathlib import Path

from swiftchat.errors import FileSystemError

__all__ = ["is_inside", "user_path"]


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


def is_inside(directory: Path, path: Path) -> bool:
    """Return whether a path stays in a model's folder when all links are followed.

    A model in huggingface_hub's cache has links in `snapshots` to the files in `blobs`.
    """
    folder = Path(os.path.realpath(directory))
    real = Path(os.path.realpath(path))
    blobs = [parent.parent / "blobs" for parent in folder.parents if parent.name == "snapshots"]
    return any(map(real.is_relative_to, (folder, *blobs)))
