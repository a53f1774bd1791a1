"""The project file: `.swiftchat.toml` in the working folder or in one above it.

It may come with the files of another person. Therefore it sets only what is harmless: the model by
name or inside the project, one of the user's own roles, and sampling parameters. Everything else in
it is left out with a notice; no error in it ends the program.
"""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swiftchat.chat.options.chat_options import SAMPLING_OPTIONS, option_name, typed
from swiftchat.chat.options.option_files import parse_toml
from swiftchat.errors import UsageError

FILE_NAME = ".swiftchat.toml"
PROJECT_OPTIONS = ("model", "role", *SAMPLING_OPTIONS)
_MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class Project:
    """The options that a project file sets, by name, and notices about what was left out."""

    path: Path
    values: dict[str, Any] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


def find_project(folder: Path, home: Path) -> Project | None:
    """Return the nearest project file in a folder or above it, up to the home folder."""
    for candidate in (folder, *folder.parents):
        path = candidate / FILE_NAME
        if os.path.lexists(path):
            return _load(path)
        if candidate == home:
            break
    return None


def current_project() -> Project | None:
    """Return the project file of the working folder."""
    try:
        return find_project(Path.cwd(), Path.home())
    except (OSError, RuntimeError):  # the working folder is deleted; there is no home folder
        return None


def _load(path: Path) -> Project:
    try:
        values = parse_toml(_read(path))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return Project(path, notices=(f"{path} is ignored: {reason}",))
    accepted: dict[str, Any] = {}
    notices = []
    for key, value in values.items():
        try:
            name = option_name(key)
            if name in accepted:
                raise UsageError(f"{name} is set twice")
            accepted[name] = _checked(name, value, path.parent)
        except UsageError as error:
            notices.append(f"{path}: {key} is ignored: {error.message}")
    return Project(path, accepted, tuple(notices))


def _read(path: Path) -> str:
    """Read the user's own regular file. Raises `OSError` or `ValueError` for any other file."""
    # Without O_NONBLOCK, opening a named pipe would wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if status.st_uid != os.geteuid():
            raise ValueError("it belongs to another user")
        if status.st_size > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
        return file.read(_MAX_BYTES).decode("utf-8-sig")


def _checked(name: str, value: Any, folder: Path) -> Any:
    """Return the value of an option. Raises `UsageError` if a project file may not set it."""
    if name not in PROJECT_OPTIONS:
        raise UsageError("a project file sets only model, role and sampling parameters")
    value = typed({name: value})[name]
    if name == "model":
        return _checked_model(value, folder)
    if name == "role":
        from swiftchat.chat.options.user_files import role_file

        role_file(value)
    return value


def _checked_model(value: str, folder: Path) -> str:
    """Return the name of a model, or the path of one in the project's folder."""
    path = Path(value)
    if not value or value.startswith("~") or path.is_absolute() or ".." in path.parts:
        raise UsageError("a project file must not name a path outside of its folder")
    for base in (folder, Path.cwd()):
        if (base / path).exists():
            if not (base / path).resolve().is_relative_to(folder.resolve()):
                raise UsageError("a project file must not name a path outside of its folder")
            return str(base / path)
    return value
