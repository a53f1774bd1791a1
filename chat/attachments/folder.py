"""The files of a folder that are read: not the hidden ones, and not those that .gitignore names."""

import os
from collections.abc import Iterator
from pathlib import Path

from pathspec import GitIgnoreSpec

from swiftchat.errors import UsageError

MAX_FILES = 10_000
_IGNORE_FILE = ".gitignore"
_MAX_IGNORE_BYTES = 1 << 20
_Rules = tuple[tuple[Path, GitIgnoreSpec], ...]  # of the outermost folder first


def readable_files(folder: Path) -> list[str]:
    """Return the names of the files below a folder, relative to it and sorted.

    Hidden files, links, and what the files `.gitignore` of the folder, of those in it and, up to
    its repository, of those above it name are left out. Raises `UsageError` for more than 10,000
    files.
    """
    names = []
    for name in _files(folder, folder, _rules_above(folder)):
        names.append(name)
        if len(names) > MAX_FILES:
            raise UsageError(
                f"{folder} has more than {MAX_FILES} files", "name a smaller folder in it"
            )
    return sorted(names)


def _files(top: Path, folder: Path, rules: _Rules) -> Iterator[str]:
    rules = (*rules, *_rules_of(folder))
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:  # a folder that may not be read
        return
    for entry in entries:
        path = folder / entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        is_file = entry.is_file(follow_symlinks=False)
        if entry.name.startswith(".") or _is_ignored(path, is_folder, rules):
            continue
        if is_folder:
            yield from _files(top, path, rules)
        elif is_file:
            yield path.relative_to(top).as_posix()


def _rules_above(folder: Path) -> _Rules:
    """Return the rules of the folders between the repository that has a folder and the folder."""
    if (folder / ".git").exists():
        return ()
    above: _Rules = ()
    for parent in folder.parents:
        above = (*_rules_of(parent), *above)
        if (parent / ".git").exists():
            return above
    return ()


def _rules_of(folder: Path) -> _Rules:
    try:
        with (folder / _IGNORE_FILE).open(encoding="utf-8-sig", errors="replace") as file:
            lines = file.read(_MAX_IGNORE_BYTES).splitlines()
        return ((folder, GitIgnoreSpec.from_lines(lines)),)
    except (OSError, ValueError):  # none, or a line that is no pattern
        return ()


def _is_ignored(path: Path, is_folder: bool, rules: _Rules) -> bool:
    """Return what the innermost rule says that knows the path."""
    for folder, spec in reversed(rules):
        name = path.relative_to(folder).as_posix()
        decision = spec.check_file(f"{name}/" if is_folder else name).include
        if decision is not None:
            return decision
    return False
