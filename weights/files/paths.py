"""Paths that a user types, words of a line with paths, and links in the folders of models."""

import errno
import os
import shlex
from pathlib import Path

from swiftchat.errors import FileSystemError, UsageError


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


def split_words(line: str, name: str) -> list[str]:
    """Return the words of a line; quotes and backslashes have the meaning of a shell.

    `name` is that of the command or option. Raises `UsageError` for a quote that is not closed.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        reason = str(error).lower()
        hint = f"{name} {shlex.quote(line)} takes it as one word"
        raise UsageError(f"{name}: {reason} in {line[:40]}", hint) from None


def only_path(line: str, name: str) -> str:
    """Return the only word of a line, or the line if it is a path as it stands.

    Raises `UsageError` for several words.
    """
    words = [line] if user_path(line).exists() else split_words(line, name)
    if len(words) != 1:
        hint = f"a name with blanks needs quotes: {name} {shlex.quote(line)}"
        raise UsageError(f"{name} takes one name, not {len(words)}", hint)
    return words[0]
