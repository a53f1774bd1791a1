"""The files that a pattern matches, without those that links bring in from elsewhere."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from swiftchat.errors import UsageError

_ANY_DEPTH = "**"
_MAX_FILES = 10_000


def matching_files(pattern: str, source: str) -> tuple[list[str], list[str]]:
    """Return the files that a pattern matches, and links to files that it would bring in, sorted.

    `**` stands for any number of folders, but enters no links to folders: they can form loops.
    The links are those out of the folder before the first part with a wildcard: the folder may be
    that of another person, such as a cloned repository. `source` is the pattern as the user wrote
    it. Raises `UsageError` for more than 10,000 files.
    """
    folder = os.path.realpath(_folder_of(pattern))
    files, links = set[str](), set[str]()
    for name in _matches(pattern):
        if Path(name).is_file():
            is_inside = Path(os.path.realpath(name)).is_relative_to(folder)
            (files if is_inside else links).add(name)
        if len(files) + len(links) > _MAX_FILES:
            raise UsageError(
                f"{source} matches more than {_MAX_FILES} files",
                "name fewer: 'src/**/*.py'",
            )
    return sorted(files), sorted(links)


def _folder_of(pattern: str) -> str:
    """Return the folder before the first part of a pattern with a wildcard."""
    while glob.has_magic(pattern):
        pattern = os.path.dirname(pattern)  # noqa: PTH120  (a Path would change the pattern)
    return pattern or "."


def _matches(pattern: str) -> Iterator[str]:
    parts = pattern.split("/")
    if _ANY_DEPTH not in parts:
        yield from glob.iglob(pattern)  # noqa: PTH207  (a Path would need the pattern split)
        return
    index = parts.index(_ANY_DEPTH)
    before, after = "/".join(parts[:index]), "/".join(parts[index + 1 :]) or "*"
    starts = [f"{start}/" for start in glob.iglob(before or "/")] if index else [""]  # noqa: PTH207
    for start in starts:
        for folder in _folders(start.replace("//", "/")):
            yield from _matches(glob.escape(folder) + after)


def _folders(start: str) -> Iterator[str]:
    """Yield `start` and the folders below it, with a `/` at the end, but hidden ones and links."""
    pending = [start]
    while pending:
        folder = pending.pop()
        yield folder
        try:
            with os.scandir(folder or ".") as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:  # not a folder, or one that may not be read: as for the shell
            continue
        pending += [f"{folder}{name}/" for name in names if not name.startswith(".")]
