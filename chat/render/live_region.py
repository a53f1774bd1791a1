"""Rows at the bottom of the terminal that are erased and redrawn while an answer streams."""

from collections.abc import Callable, Sequence

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

Size = tuple[int, int]  # columns, rows
_CONSOLE = Console(width=80)  # rich reads the tab size from it
_MAX_ROWS = 12


class LiveRegion:
    """Writes permanent rows once and redraws a short tail below them.

    `write` receives each drawing as one string, so that the terminal does not flicker. `rewraps`:
    the terminal rewraps long rows when it becomes narrower.
    """

    def __init__(
        self, write: Callable[[str], None], size: Callable[[], Size], rewraps: bool
    ) -> None:
        self._write = write
        self._size = size
        self._rewraps = rewraps
        self._widths: list[int] = []  # of the tail's rows on the screen

    def draw(
        self,
        permanent: Sequence[str],
        tail: Sequence[str],
        title: str = "",
        style: str = "",
        by_words: bool = True,
    ) -> None:
        """Erase the old tail, write permanent rows, then draw the last rows of `tail`.

        `permanent` may contain escape sequences; `tail` is plain text. `title` stands above the
        tail; `style` is the escape sequence for both. Tail lines wrap `by_words` or at the full
        width, and take at most half the screen.
        """
        columns, lines = self._size()
        max_rows = max(1, min(_MAX_ROWS, lines // 2))
        above = last_rows([title], columns - 1, 1, by_words) if title else []
        rows = above + last_rows(tail, columns - 1, max_rows - len(above), by_words)
        written = self._erasing(columns) + "".join(f"{row}\n" for row in permanent)
        if rows:
            # No automatic wrap: the terminal may count a character as wider than wcwidth does.
            reset = "\x1b[0m" if style else ""
            written += "\x1b[?7l" + style + "\n".join(rows) + reset + "\x1b[?7h"
        self._widths = [cell_len(row) for row in rows]
        if written:
            self._write(written)

    def _erasing(self, columns: int) -> str:
        # Erase row by row: tmux keeps a block that begins at the first row of the screen.
        if not self._widths:
            return ""
        num_rows = len(self._widths)
        if self._rewraps:
            num_rows = sum(max(1, -(-width // columns)) for width in self._widths)
        return "\r\x1b[K" + "\x1b[A\x1b[K" * (num_rows - 1)


def last_rows(lines: Sequence[str], columns: int, max_rows: int, by_words: bool) -> list[str]:
    """Wrap plain text and return its last rows; [] if all of them are empty."""
    rows: list[str] = []
    for line in reversed(lines):
        rows = _wrapped(line.expandtabs(4), max(1, columns), by_words) + rows
        if len(rows) >= max_rows:
            break
    return rows[-max_rows:] if max_rows > 0 and any(rows) else []


def _wrapped(line: str, columns: int, by_words: bool) -> list[str]:
    if by_words:
        return [row.plain for row in Text(line).wrap(_CONSOLE, columns, overflow="fold")] or [""]
    return chop_cells(line, columns) or [""]
