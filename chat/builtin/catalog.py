"""The list of the built-in tools."""

import os
from collections.abc import Collection

from swiftchat.chat.builtin.commands import python, shell
from swiftchat.chat.builtin.declaration import declared
from swiftchat.chat.builtin.fetch import fetch
from swiftchat.chat.builtin.file_tools import edit, list_folder, read, write
from swiftchat.chat.builtin.search import search
from swiftchat.chat.tools.tool import Tool
from swiftchat.errors import UsageError
from swiftchat.errors.interpreter import child_folder

# The name, the function, and the argument that the user may change.
_TOOLS = (
    ("read", read, "path"),
    ("list", list_folder, "path"),
    ("search", search, "pattern"),
    ("write", write, "content"),
    ("edit", edit, "new_text"),
    ("shell", shell, "command"),
    ("python", python, "code"),
    ("fetch", fetch, "url"),
)
NAMES = tuple(name for name, _, _ in _TOOLS)
_ALL = "all"


def tool_names(value: str) -> list[str]:
    """Return the tools that a value of `--tools` names: `all`, or names with commas between.

    Raises `UsageError` for other names.
    """
    names = [name.strip() for name in value.split(",") if name.strip()]
    if unknown := [name for name in names if name not in (*NAMES, _ALL)]:
        raise UsageError(
            f"there is no built-in tool {unknown[0]!r}", f"all, or some of: {', '.join(NAMES)}"
        )
    return [name for name in NAMES if name in names or _ALL in names]


def builtin_tools(names: Collection[str], *, offline: bool) -> list[Tool]:
    """Return tools that work in the present working folder."""
    top = child_folder() or os.path.realpath(".")
    return [
        declared(name, function, edited, offline if name == "fetch" else top)
        for name, function, edited in _TOOLS
        if name in names
    ]
