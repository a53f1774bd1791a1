"""Streaming Markdown view of an answer on a terminal."""

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
from rich.segment import Segment
from rich.text import Text
from rich.theme import Theme as RichTheme

from swiftchat.chat.model.reasoning import ReasoningText
from swiftchat.chat.render.blocks import BlockStream
from swiftchat.chat.render.live_region import LiveRegion, Size
from swiftchat.chat.render.rows import MarkdownRows, Tail
from swiftchat.chat.render.style import Rows, Style
from swiftchat.chat.render.verbatim import VerbatimStream
from swiftchat.chat.terminal.sanitize import sanitize, sanitize_prose

if TYPE_CHECKING:
    from swiftchat.chat.model.answer import Answer

_CONSOLE = Console(width=80)  # rich reads the tab size from it
_MIN_INTERVAL_S = 0.05  # between two drawings
_MAX_REASONING_ROWS = 12
_MAX_REASONING_CHARS = 4096  # kept for the tail


def terminal_size() -> Size:
    """Return columns and rows of stdout, or those that the environment gives."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        size = os.terminal_size((0, 0))
    return size if size.columns and size.lines else shutil.get_terminal_size()


class MarkdownView:
    """Writes each finished Markdown block once and redraws the unfinished tail below it.

    Reasoning is shown while it streams and then folded to one line. An answer that matches a
    grammar is no Markdown: its lines are written as they are. Without `style.is_live` nothing is
    redrawn. `rows_below` returns the rows below the tail. Tests replace `size` and `clock`.
    """

    def __init__(
        self,
        style: Style,
        answer: "Answer | None",
        name: str,
        write: Callable[[str], None],
        size: Callable[[], Size] = terminal_size,
        clock: Callable[[], float] = time.monotonic,
        rows_below: Callable[[int], Rows] = lambda columns: [],
    ) -> None:
        self._style = style
        self._answer = answer
        self._rows_below = rows_below
        self._size = size
        self._clock = clock
        is_verbatim = answer is not None and answer.is_constrained
        self._blocks = VerbatimStream() if is_verbatim else BlockStream()
        self._rows = MarkdownRows(style)
        self._region = LiveRegion(write, size, style.rewraps, AnsiEncoder(style).encode)
        self._reasoning = ""
        self._is_reasoning = False
        self._last_drawn_s = float("-inf")
        self._unwritten: list[Text] = []
        if style.mode == "accessible":
            self._unwritten.append(Text(f"{sanitize(name)}:"))

    def push(self, piece: str) -> None:
        with _signals_deferred():
            if isinstance(piece, ReasoningText):
                self._add_reasoning(piece)
            elif piece:
                self._fold_reasoning()
                for block in self._blocks.push(sanitize_prose(piece)):
                    self._unwritten += self._rows.render(block, self._size()[0])
            is_due = self._clock() - self._last_drawn_s >= _MIN_INTERVAL_S
            if is_due and (self._style.is_live or self._unwritten):
                self._draw()

    def pause(self) -> None:
        self._region.draw([], [])
        self._last_drawn_s = float("-inf")

    def close(self, note: str = "") -> None:
        with _signals_deferred():
            self._fold_reasoning()
            for block in self._blocks.finish():
                self._unwritten += self._rows.render(block, self._size()[0])
            self._unwritten += [Text(note)] if note else []
            self._region.draw(self._unwritten, [])
            self._unwritten = []

    def _add_reasoning(self, piece: str) -> None:
        if not self._is_reasoning and not self._style.is_live:
            self._unwritten.append(Text("Thinking…"))
        self._is_reasoning = True
        self._reasoning = (self._reasoning + sanitize_prose(piece))[-_MAX_REASONING_CHARS:]

    def _fold_reasoning(self) -> None:
        if self._is_reasoning:
            self._is_reasoning, self._reasoning = False, ""
            self._unwritten += [
                Text(_reasoning_summary(self._answer), "swiftchat.reasoning"),
                Text(),
            ]

    def _draw(self) -> None:
        self._last_drawn_s = self._clock()
        permanent, self._unwritten = self._unwritten, []
        columns, lines = self._size()
        if not self._style.is_live:
            tail = Tail([])
        elif self._is_reasoning:
            tail = _reasoning_tail(self._reasoning, columns, lines)
        else:
            tail = self._rows.preview(self._blocks.pending(), columns, lines - 1)
        self._region.draw(permanent, [*tail.rows, *self._status(columns)], tail.num_pinned)

    def _status(self, columns: int) -> list[Text]:
        """Return the rows below an answer that is generated."""
        if not self._style.is_live:
            return []
        rows = self._rows_below(columns)
        is_colored = self._style.is_colored
        return [Text(text, f"swiftchat.{part}" if is_colored else "") for part, text in rows]


def _reasoning_tail(reasoning: str, columns: int, lines: int) -> Tail:
    """Return a title and the last rows of the reasoning, in at most half the window."""
    num_rows = max(1, min(_MAX_REASONING_ROWS, lines // 2) - 1)
    text = Text("\n".join(reasoning.strip("\n").split("\n")[-num_rows:]), "swiftchat.reasoning")
    rows = text.wrap(_CONSOLE, max(1, columns), overflow="fold", tab_size=4)
    return Tail([Text("Thinking…", "swiftchat.reasoning"), *rows[-num_rows:]])


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Deliver Ctrl-C and Ctrl-Z at the end: during a drawing they would lose lines."""
    caught: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTSTP)
    before = [signal.signal(number, lambda n, frame: caught.append(n)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    for pending in caught:
        signal.raise_signal(pending)


def _reasoning_summary(answer: "Answer | None") -> str:
    if answer is None:
        return "…done thinking"
    return f"…done thinking ({answer.num_reasoning_tokens} tok, {answer.reasoning_s:.1f} s)"


class AnsiEncoder:
    """Encodes styled rows with escape sequences; without any for uncolored accessible output."""

    def __init__(self, style: Style) -> None:
        self._is_plain = style.mode == "accessible" and not style.is_colored
        self._style = style
        # rich looks styles up in it.
        self._console = Console(width=80, theme=RichTheme(style.theme.styles()))

    def encode(self, row: Text) -> str:
        if self._is_plain:
            return row.plain
        row.end = ""
        row.stylize_before(row.style)  # rich leaves the style of a row without spans out
        return "".join(self._encode_segment(part) for part in row.render(self._console))

    def _encode_segment(self, segment: Segment) -> str:
        style = segment.style
        if style is None:
            return segment.text
        address = style.link
        style = style.update_link(None)  # rich writes another number with it each time
        if not self._style.is_colored:
            style = style.without_color
        text = style.render(segment.text, color_system=ColorSystem.TRUECOLOR)
        if address and self._style.has_links:
            return f"\x1b]8;;{address}\x1b\\{text}\x1b]8;;\x1b\\"
        return text
