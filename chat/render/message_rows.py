"""Rows of questions, calls of tools and their results: the same when they come and when reprinted.

Answers are drawn by `view.py`, notices and errors by `print_notice` and `print_error`.
"""

from collections.abc import Iterator
from itertools import islice

from swiftchat.chat.history.conversation import Message
from swiftchat.chat.render.style import Style
from swiftchat.chat.terminal.sanitize import sanitize

STOPPED = "⏹ stopped"
_MAX_CALL_ROWS, _MAX_RESULT_ROWS = 3, 6


def question_rows(style: Style, text: str, width: int) -> list[str]:
    """Return a message behind the prompts of the input line, and a blank row."""
    # Imported here, because it would delay the prompt.
    from rich.console import Console
    from rich.text import Text

    console = Console(width=80)  # rich reads the tab size from it
    first = "You >>> " if style.mode == "accessible" else ">>> "
    rows: list[str] = []
    for line in sanitize(text).split("\n"):
        prompt = "... " if rows else first
        wrapped = Text(line).wrap(console, max(1, width - len(prompt)), overflow="fold") or [Text()]
        rows += [(" " * len(prompt) if i else prompt) + row.plain for i, row in enumerate(wrapped)]
    rows = [style.paint("question", row.rstrip()) for row in rows]
    return rows if style.mode == "accessible" else [*rows, ""]


def call_rows(style: Style, call: str, result: Message | None, width: int) -> list[str]:
    """Return a call of a tool, the text of a `ToolCall`, with its result, and a blank row.

    A result of one line stands behind the call if it fits there. Of long ones the beginning is
    shown.
    """
    sign, arrow = ("calls ", "result: ") if style.mode == "accessible" else ("● ", "→ ")
    rows = list(islice(_cut(sign + sanitize(call), width), _MAX_CALL_ROWS + 1))
    if len(rows) > _MAX_CALL_ROWS:
        rows[_MAX_CALL_ROWS:] = ["  …"]
    if result is not None:
        lines = [sanitize(line) for line in result.content.splitlines()] or [""]
        joined = list(_cut(f"{rows[-1]} {arrow}{lines[0]}", width))
        if len(lines) == len(joined) == 1:
            rows[-1:] = joined
        else:
            rows += _result_rows(arrow, lines, width)
    return [*(style.paint("tool", row) for row in rows), ""]


def _result_rows(arrow: str, lines: list[str], width: int) -> list[str]:
    """Return the first lines of a result, one row each, and how many more there are."""
    rows: list[str] = []
    for line in lines[:_MAX_RESULT_ROWS]:
        first, *more = islice(_cut(f"  {'  ' if rows else arrow}{line}", width - 1), 2)
        rows.append(f"{first}…" if more else first)
    num_more = len(lines) - _MAX_RESULT_ROWS
    return [*rows, f"    … {num_more} more lines"] if num_more > 0 else rows


def _cut(line: str, width: int) -> Iterator[str]:
    """Yield a line in parts of at most `width` columns."""
    from rich.cells import get_character_cell_size

    begin = columns = 0
    line = line.expandtabs(4)
    for i, character in enumerate(line):
        size = get_character_cell_size(character)
        if columns + size > max(2, width):
            yield line[begin:i]
            begin, columns = i, 0
        columns += size
    yield line[begin:]
