"""The tools that run something: a command of the shell, and a program in Python."""

import os
import signal
from pathlib import Path
from typing import Annotated

from swiftchat.chat.builtin.diff import Row
from swiftchat.chat.builtin.program import Ended, run_program
from swiftchat.chat.terminal.child import plain_text
from swiftchat.chat.terminal.sanitize import escape_invisible
from swiftchat.chat.tools.tool import Action
from swiftchat.errors import UsageError
from swiftchat.errors.interpreter import python_code

_LIMIT_S = 120.0
_MAX_BYTES = 1 << 20
_MAX_CHARACTERS = 100_000  # of an argument; the system takes 128 KiB
_ENV = {"TERM": "dumb", "PAGER": "cat"}


def shell(
    top: str, command: Annotated[str, "It gets no input, and at most two minutes."]
) -> Action:
    """Run a command of the user's shell in the working folder; return output and exit status."""
    program = os.environ.get("SHELL") or "/bin/sh"
    kind = f"shell, {Path(program).name} in {top}"
    return _action(kind, "$ ", [program, "-c", command], command, top)


def python(top: str, code: Annotated[str, "A program that prints its results."]) -> Action:
    """Run a program in Python in the working folder; return output and exit status."""
    return _action(f"python in {top}", "  ", python_code(code), code, top)


def _action(kind: str, sign: str, command: list[str], text: str, top: str) -> Action:
    if not text.strip() or len(text) > _MAX_CHARACTERS:
        raise UsageError("there is nothing to run, or more than 100,000 characters", "")
    lines = [escape_invisible(line.expandtabs(4)) for line in text.split("\n")]
    rows: list[Row] = [
        ("tool", escape_invisible(kind)),
        *(("code", f"{sign}{line}") for line in lines),
    ]

    def run() -> str:
        ended = run_program(command, top, limit_s=_LIMIT_S, max_bytes=_MAX_BYTES, env=_ENV)
        output = plain_text(ended.output.decode("utf-8", "replace")).rstrip()
        return "\n".join(part for part in (output, _end(ended)) if part) or "(no output)"

    return Action(run, kind, rows)


def _end(ended: Ended) -> str:
    """Return what the model is told about an end that is no success."""
    if ended.status is None:
        return f"(ended by the limit: {ended.limit})"
    if ended.status < 0:
        return f"(ended by {signal.Signals(-ended.status).name})"
    return f"(exit status {ended.status})" if ended.status else ""
