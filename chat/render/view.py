"""Output of an answer while it streams, to a pipe or to a terminal."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from swiftchat.chat.model.reasoning import ReasoningText
from swiftchat.chat.render.style import Rows, Style
from swiftchat.chat.terminal.output import write
from swiftchat.chat.terminal.sanitize import sanitize_prose

if TYPE_CHECKING:
    from swiftchat.chat.model.answer import Answer


class AnswerView(Protocol):
    """Output of one streamed answer.

    `push` shows a piece of text. `pause` erases the redrawn rows until the next piece. `close`
    shows the remaining text and an optional note on why the answer ended.
    """

    def push(self, piece: str) -> None: ...
    def pause(self) -> None: ...
    def close(self, note: str = "") -> None: ...


def open_view(
    style: Style,
    answer: "Answer | None",
    name: str,
    rows_below: Callable[[int], Rows] = lambda columns: [],
) -> AnswerView:
    """Return the view for an answer of the model `name`.

    `answer` supplies the reasoning statistics; None leaves them out. `rows_below` returns rows of
    at most so many columns, which stand below an answer that is redrawn.
    """
    if style.is_rendered:
        from swiftchat.chat.render.markdown_view import MarkdownView

        return MarkdownView(style, answer, name, write, rows_below=rows_below)
    return PlainView(sanitized=style.mode == "raw")


def preload(style: Style) -> None:
    """Import the modules that a view needs: 0.1 s that would otherwise delay the first answer."""
    if style.is_rendered:
        import swiftchat.chat.render.markdown_view  # noqa: F401 (loads rich early)
        from swiftchat.chat.render.highlight import Highlighter

        Highlighter("python")  # load the most frequent lexer


def show(style: Style, text: str, name: str) -> None:
    """Show a complete text as if the model `name` had answered it."""
    view = open_view(replace(style, is_live=False), None, name)
    view.push(text)
    view.close()


class PlainView:
    """An answer without rendering and without reasoning; `sanitized` for terminals."""

    def __init__(self, sanitized: bool) -> None:
        self._sanitized = sanitized
        self._ends_line = False

    def push(self, piece: str) -> None:
        if piece and not isinstance(piece, ReasoningText):
            self._ends_line = piece.endswith("\n")
            write(sanitize_prose(piece) if self._sanitized else piece)

    def pause(self) -> None:
        """Do nothing: this view redraws no rows."""

    def close(self, note: str = "") -> None:
        write(f" {note}" if note else "")
        if note or not self._ends_line:
            write("\n")
        self._ends_line = True
