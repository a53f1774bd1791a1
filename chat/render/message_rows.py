"""Rows of questions, calls of tools and their results: the same when they come and when reprinted.

Answers are drawn by `view.py`, notices and errors by `print_notice` and `print_error`.
"""

from swiftchat.chat.history.conversation import Message
from swiftchat.chat.render.style import Style
from swiftchat.chat.terminal.sanitize import sanitize

STOPPED = "⏹ stopped"
_MAX_RESULT_ROWS, _MAX_RESULT_COLUMNS = 6, 200


def question_rows(style: Style, text: str, width: int) -> list[str]:
    """Return a message behind the prompts of the input line."""
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
    return [row.rstrip() for row in rows]


def call_row(call: str) -> str:
    """Return a call of a tool, the text of a `ToolCall`."""
    return sanitize(f"calls {call}")


def result_rows(message: Message) -> list[str]:
    """Return the beginning of the result of a tool, and a blank row."""
    names = ", ".join(call.name for call in message.tool_calls)
    lines = message.content.splitlines()
    shown = [
        line if len(line) <= _MAX_RESULT_COLUMNS else f"{line[:_MAX_RESULT_COLUMNS]}…"
        for line in lines[:_MAX_RESULT_ROWS]
    ]
    shown += ["…"] if len(lines) > _MAX_RESULT_ROWS else []
    return [sanitize(f"result of {names}:"), *map(sanitize, shown), ""]
