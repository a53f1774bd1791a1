"""The tool that searches files with a regular expression, in a process with a time limit."""

import json
from typing import Annotated

from swiftchat.chat.builtin.place import place_of
from swiftchat.chat.builtin.program import run_program
from swiftchat.chat.tools.tool import Action
from swiftchat.errors import UsageError
from swiftchat.errors.interpreter import python_module

_LIMIT_S = 20.0
_MAX_BYTES = 1 << 20


def search(
    top: str,
    pattern: Annotated[str, "A regular expression of Python, which a line must contain."],
    path: Annotated[str, "A file or a folder, relative to the working folder (.)."] = ".",
) -> Action:
    """Return the lines of text files that match, below a folder, without those of .gitignore."""
    place = place_of(path, top)

    def run() -> str:
        request = json.dumps({"pattern": pattern, "path": place.path, "top": place.top})
        command = python_module("swiftchat.chat.builtin.searcher")
        ended = run_program(
            command, "/", limit_s=_LIMIT_S, max_bytes=_MAX_BYTES, text=request.encode()
        )
        found = ended.output.decode("utf-8", "replace").strip()
        if ended.limit:
            return f"{found}\n(stopped after {ended.limit}; a simpler expression may help)".strip()
        if ended.status:
            raise UsageError(found.splitlines()[-1] if found else "the search has ended", "")
        return found or "(no line matches)"

    return Action(run, "search", warning=place.warning)
