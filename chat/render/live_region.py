"""The foot of a terminal: rows that stay, and below them a few that are drawn over and over."""

from collections.abc import Callable, Sequence

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

Size = tuple[int, int]  # columns, rows
_CONSOLE = Console(width=80)  # rich asks it how wide a tab is
_MOST_ROWS = 12


class LiveRegion:
    """Rows that stay are written once. The others are erased before anything else is written.

    `write` takes what one drawing needs at once, so that nothing flickers. `rewraps` says that
    the terminal breaks rows that become too long in two when it is made narrower.
    """

    def __init__(
        self, write: Callable[[str], None], size: Callable[[], Size], rewraps: bool
    ) -> None:
        self._write = write
        self._size = size
        self._rewraps = rewraps
        self._shown: list[int] = []  # how wide the rows are that stand there now

    def draw(
        self,
        staying: Sequence[str],
        tail: Sequence[str],
        title: str = "",
        style: str = "",
        by_words: bool = True,
    ) -> None:
        """Write rows that stay, with their escapes, then the last rows of `tail`, plain text.

        `title` stands over the tail, `style` is the escape sequence of both. Lines of the tail
        are wrapped, `by_words` or where a row is full; no more rows of them are shown than half
        the screen holds.
        """
        columns, lines = self._size()
        most = max(1, min(_MOST_ROWS, lines // 2))
        above = last_rows([title], columns - 1, 1, by_words) if title else []
        rows = above + last_rows(tail, columns - 1, most - len(above), by_words)
        written = self._erasing(columns) + "".join(f"{row}\n" for row in staying)
        if rows:
            # A terminal that thinks a character wider than we do must not begin a new row.
            reset = "\x1b[0m" if style else ""
            written += "\x1b[?7l" + style + "\n".join(rows) + reset + "\x1b[?7h"
        self._shown = [cell_len(row) for row in rows]
        if written:
            self._write(written)

    def _erasing(self, columns: int) -> str:
        # Row by row: what is erased at once, tmux keeps if it began at the screen's first row.
        if not self._shown:
            return ""
        num_rows = len(self._shown)
        if self._rewraps:
            num_rows = sum(max(1, -(-width // columns)) for width in self._shown)
        return "\r\x1b[K" + "\x1b[A\x1b[K" * (num_rows - 1)


def last_rows(lines: Sequence[str], columns: int, most: int, by_words: bool) -> list[str]:
    """The last rows of some lines of plain text; [] if there is nothing to be seen."""
    rows: list[str] = []
    for line in reversed(lines):
        rows = _wrapped(line.expandtabs(4), max(1, columns), by_words) + rows
        if len(rows) >= most:
            break
    return rows[-most:] if most > 0 and any(rows) else []


def _wrapped(line: str, columns: int, by_words: bool) -> list[str]:
    if by_words:
        return [row.plain for row in Text(line).wrap(_CONSOLE, columns, overflow="fold")] or [""]
    return chop_cells(line, columns) or [""]
