"""Rows at the bottom of the terminal that are redrawn while an answer streams."""

from collections.abc import Callable, Sequence
from itertools import accumulate

from rich.text import Text

Size = tuple[int, int]  # columns, rows


class LiveRegion:
    """Writes permanent rows once and redraws a tail below them.

    `write` receives each drawing as one string. Only the rows from the first one that changed are
    erased and written, so that the others do not flicker. `rewraps`: the terminal rewraps long rows
    when it becomes narrower.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        size: Callable[[], Size],
        rewraps: bool,
        encode: Callable[[Text], str],
    ) -> None:
        self._write = write
        self._size = size
        self._rewraps = rewraps
        self._encode = encode
        self._drawn: list[Text] = []  # the tail's rows on the screen
        self._encoded: list[str] = []
        self._drawn_size: Size = (0, 0)
        self._escaped = ""  # words of tail rows that scrolled out of a window that became lower

    def draw(self, permanent: Sequence[Text], tail: Sequence[Text], num_pinned: int = 0) -> None:
        """Replace the old tail by permanent rows and a new tail.

        The tail takes at most the window but one row: of a longer one the first `num_pinned` and
        the last rows are drawn.
        """
        columns, lines = size = self._size()
        written = ""
        if self._encoded and size != self._drawn_size:
            written = self._erasing_after_resize(columns, lines)
        self._drawn_size = size
        num_escaped = self._num_escaped([*permanent, *tail], len(permanent))
        num_pinned = max(0, num_pinned - max(0, num_escaped - len(permanent)))
        tail = tail[max(0, num_escaped - len(permanent)) :]
        permanent = permanent[num_escaped:]
        tail = _clipped(tail, max(1, lines - 1), num_pinned)
        rows = [*map(self._encode, (*permanent, *tail))]
        num_kept = self._num_kept(len(permanent), rows, columns)
        num_old = len(self._encoded)
        new_permanent, new_tail = (
            rows[num_kept : len(permanent)],
            rows[max(num_kept, len(permanent)) :],
        )
        written += _erasing(num_old - num_kept)
        if 0 < num_old == num_kept and (new_permanent or new_tail or not tail):
            written += "\n"
        written += "".join(f"{row}\n" for row in new_permanent)
        if new_tail:
            # No automatic wrap: the terminal may count a character as wider than wcwidth does.
            written += "\x1b[?7l" + "\n".join(new_tail) + "\x1b[?7h"
        self._drawn, self._encoded = list(tail), rows[len(permanent) :]
        if written:
            self._write(written)

    def _num_kept(self, num_permanent: int, rows: Sequence[str], columns: int) -> int:
        """Return how many rows on the screen are as they will be."""
        num_kept = 0
        for row, old, drawn in zip(rows, self._encoded, self._drawn, strict=False):
            # The end of a row in the tail may be cut off. A permanent row must be complete.
            may_be_cut = not old.isascii() and drawn.cell_len > columns // 2
            if row != old or (num_kept < num_permanent and may_be_cut):
                break
            num_kept += 1
        # The cursor ends in the last row of the tail.
        is_shorter = num_permanent < num_kept == len(rows) < len(self._encoded)
        return num_kept - is_shorter

    def _erasing_after_resize(self, columns: int, lines: int) -> str:
        """Return what erases the tail, and note which of its rows left the window."""
        heights = [
            max(1, -(-row.cell_len // columns)) if self._rewraps else 1 for row in self._drawn
        ]
        num_visible = sum(total <= lines for total in accumulate(reversed(heights)))
        if self._rewraps or columns >= self._drawn_size[0]:  # otherwise they may be cut off
            self._escaped += "".join(map(_words, self._drawn[: len(heights) - num_visible]))
        self._drawn, self._encoded = [], []
        return _erasing(min(sum(heights), lines))

    def _num_escaped(self, rows: Sequence[Text], num_permanent: int) -> int:
        """Return how many of the first rows stand above the window already."""
        words, num_escaped = "", 0
        while num_escaped < len(rows) and len(words) < len(self._escaped):
            words += _words(rows[num_escaped])
            if not self._escaped.startswith(words):
                break
            num_escaped += 1
        if num_permanent:  # they are not among the next rows
            done = "".join(map(_words, rows[:num_permanent]))
            self._escaped = self._escaped[len(done) :] if num_escaped >= num_permanent else ""
        return num_escaped


def _erasing(num_rows: int) -> str:
    # Row by row: tmux keeps a block that begins at the first row of the screen.
    return "\r\x1b[K" + "\x1b[A\x1b[K" * (num_rows - 1) if num_rows else ""


def _clipped(rows: Sequence[Text], max_rows: int, num_pinned: int) -> Sequence[Text]:
    if len(rows) <= max_rows:
        return rows
    num_pinned = num_pinned if num_pinned < max_rows else 0
    return [*rows[:num_pinned], *rows[len(rows) - max_rows + num_pinned :]]


def _words(row: Text) -> str:
    return "".join(row.plain.split())
