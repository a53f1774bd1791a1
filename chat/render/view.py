"""Where an answer goes while it comes: a pipe, or a terminal."""

from typing import TYPE_CHECKING, Protocol

from swiftchat.chat.model.reasoning import Thought
from swiftchat.chat.render.style import Style
from swiftchat.chat.terminal.output import write
from swiftchat.chat.terminal.sanitize import sanitize

if TYPE_CHECKING:
    from swiftchat.chat.model.answer import Answer


class AnswerView(Protocol):
    """Shows an answer's pieces as they come; `close` shows what is left, and why it ended.

    `pause` erases what would be drawn over, until the next piece.
    """

    def push(self, piece: str) -> None: ...
    def pause(self) -> None: ...
    def close(self, note: str = "") -> None: ...


def open_view(style: Style, answer: "Answer | None", name: str) -> AnswerView:
    """The view of an answer that `name` gives; `answer` is asked what its reasoning took."""
    if style.is_rendered:
        from swiftchat.chat.render.markdown_view import MarkdownView

        return MarkdownView(style, answer, name)
    return PlainView(style.mode == "raw")


def preload(style: Style) -> None:
    """Import what a view will need: a tenth of a second that no answer should wait for."""
    if style.is_rendered:
        import swiftchat.chat.render.markdown_view  # noqa: F401
        from swiftchat.chat.render.highlight import Highlighter

        Highlighter("python")  # the most likely one


def show(style: Style, text: str, name: str) -> None:
    """Show a text that is complete, as an answer of `name` would be."""
    view = open_view(style, None, name)
    view.push(text)
    view.close()


class PlainView:
    """The text as it is, with control characters made visible for a terminal; no reasoning."""

    def __init__(self, gated: bool) -> None:
        self._gated = gated
        self._ends_line = False

    def push(self, piece: str) -> None:
        if piece and not isinstance(piece, Thought):
            self._ends_line = piece.endswith("\n")
            write(sanitize(piece) if self._gated else piece)

    def pause(self) -> None:
        """Nothing here is drawn over."""

    def close(self, note: str = "") -> None:
        write(f" {note}" if note else "")
        if note or not self._ends_line:
            write("\n")
