"""An answer on the terminal as Markdown, while it comes."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from swiftchat.chat.model.reasoning import Thought
from swiftchat.chat.render.blocks import BlockStream
from swiftchat.chat.render.live_region import LiveRegion, Size
from swiftchat.chat.render.rows import MarkdownRows
from swiftchat.chat.render.style import Style
from swiftchat.chat.terminal.output import write
from swiftchat.chat.terminal.sanitize import sanitize

if TYPE_CHECKING:
    from swiftchat.chat.model.answer import Answer

_EVERY_S = 0.05  # between two drawings
_TAIL_LINES = 12
_MOST_THOUGHT = 4096  # characters of the reasoning that may be on the screen


def terminal_size() -> Size:
    """Columns and rows of what stdout is, or what the environment says of them."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        size = os.terminal_size((0, 0))
    return size if size.columns and size.lines else shutil.get_terminal_size()


class MarkdownView:
    """Markdown, each finished block written once, and what is not finished drawn below it.

    Reasoning is shown while it comes and folded to a line afterwards. Without `style.is_live`
    nothing is drawn that does not stay. `out`, `size` and `clock` are for tests.
    """

    def __init__(
        self,
        style: Style,
        answer: "Answer | None",
        name: str,
        out: Callable[[str], None] = write,
        size: Callable[[], Size] = terminal_size,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._style = style
        self._answer = answer
        self._size = size
        self._clock = clock
        self._blocks = BlockStream()
        self._rows = MarkdownRows(marks=style.mode == "accessible")
        self._region = LiveRegion(out, size, style.rewraps)
        self._ansi = Ansi(style)
        self._thought = ""
        self._is_thinking = False
        self._drawn = float("-inf")
        self._waiting = (
            [f"{sanitize(name)}:"] if style.mode == "accessible" else []
        )  # to be written

    def push(self, piece: str) -> None:
        with _uninterrupted():
            if isinstance(piece, Thought):
                self._think(piece)
            elif piece:
                self._fold()
                for block in self._blocks.push(sanitize(piece)):
                    self._add(self._rows.of(block, self._size()[0]))
            if self._clock() - self._drawn >= _EVERY_S and (self._style.is_live or self._waiting):
                self._draw()

    def pause(self) -> None:
        self._region.draw([], [])
        self._drawn = float("-inf")

    def close(self, note: str = "") -> None:
        with _uninterrupted():
            self._fold()
            for block in self._blocks.finish():
                self._add(self._rows.of(block, self._size()[0]))
            self._add([Text(note)] if note else [])
            self._region.draw(self._waiting, [])
            self._waiting = []

    def _think(self, piece: str) -> None:
        if not self._is_thinking and not self._style.is_live:
            self._waiting.append("Thinking…")
        self._is_thinking = True
        self._thought = (self._thought + sanitize(piece))[-_MOST_THOUGHT:]

    def _fold(self) -> None:
        if self._is_thinking:
            self._is_thinking, self._thought = False, ""
            self._add([Text(folded_reasoning(self._answer), "dim"), Text()])

    def _add(self, rows: list[Text]) -> None:
        self._waiting += map(self._ansi.of, rows)

    def _draw(self) -> None:
        self._drawn = self._clock()
        waiting, self._waiting = self._waiting, []
        if not self._style.is_live:
            self._region.draw(waiting, [])
        elif self._is_thinking:
            thought = self._thought.strip("\n").split("\n")[-_TAIL_LINES:]
            self._region.draw(waiting, thought, "Thinking…", self._ansi.dim)
        else:
            tail, in_fence = self._blocks.tail(_TAIL_LINES), self._blocks.is_in_fence
            if in_fence and tail[-1]:
                tail[-1] = self._rows.unfinished_code(tail[-1], self._size()[0])
            self._region.draw(waiting, tail, by_words=not in_fence)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C and Ctrl-Z wait for the end: in the middle of a drawing they would lose lines."""
    caught: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTSTP)
    before = [signal.signal(number, lambda n, frame: caught.append(n)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    for waiting in caught:
        signal.raise_signal(waiting)


def folded_reasoning(answer: "Answer | None") -> str:
    if answer is None:
        return "…done thinking"
    return f"…done thinking ({answer.num_reasoning_tokens} tok, {answer.reasoning_s:.1f} s)"


class Ansi:
    """Rows of text with their styles as escape sequences; none for an uncolored screen reader."""

    def __init__(self, style: Style) -> None:
        self._is_plain = style.mode == "accessible" and not style.is_colored
        self._is_colored = style.is_colored
        self._console = Console(width=80)  # rich wants one to look styles up
        self.dim = "" if self._is_plain else "\x1b[2m"

    def of(self, row: Text) -> str:
        if self._is_plain:
            return row.plain
        row.end = ""
        text = ""
        for segment in row.render(self._console):
            style = segment.style
            if style is not None and not self._is_colored:
                style = style.without_color
            system = ColorSystem.STANDARD
            text += style.render(segment.text, color_system=system) if style else segment.text
        return text
