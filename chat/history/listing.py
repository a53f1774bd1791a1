"""Tables and search results on stdout."""

import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swiftchat.chat.history.conversation import SHORT_ID
from swiftchat.chat.terminal.sanitize import sanitize

if TYPE_CHECKING:  # SQLite is not needed before the first list
    from swiftchat.chat.history.search import Found

_GAP = 2
_MIN_SHORTENED = 6  # cells


@dataclass(frozen=True)
class Column:
    """A column of a table, and what becomes of it on a terminal that is too narrow.

    The cells of a shortened column lose their ends. If that is not enough, columns are left out in
    the order of `left_out`; 0 means never.
    """

    title: str
    left_out: int = 0
    is_shortened: bool = False


def format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def print_table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], *, is_aligned_in_pipes: bool = False
) -> None:
    """Print a table that fits the terminal; in a pipe, full values separated by tabs, no titles.

    With `is_aligned_in_pipes` a pipe gets what a very wide terminal would show.
    """
    cells = [[" ".join(sanitize(cell).split()) for cell in row] for row in rows]
    if sys.stdout.isatty():
        # Imported here: a pipe does not need it, and it takes 50 ms.
        from rich.console import Console
        from rich.text import Text

        head, *lines = table_lines(columns, cells, shutil.get_terminal_size().columns)
        Console(highlight=False, soft_wrap=True).print(Text(head, "bold"))
    elif is_aligned_in_pipes:
        lines = table_lines(columns, cells, None)
    else:
        lines = ["\t".join(row) for row in cells]
    for line in lines:
        print(line)


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None
) -> list[str]:
    """Return the titles and the rows of a table, each at most `width` cells wide if possible."""
    from rich.cells import cell_len, set_cell_size

    table = [[column.title for column in columns], *rows]
    widths = [max(map(cell_len, cells)) for cells in zip(*table, strict=True)]
    if width is not None:
        widths = _fitting_widths(columns, widths, width)
    lines = []
    for row in table:
        shown = [
            set_cell_size(
                f"{set_cell_size(cell, size - 1)}…" if cell_len(cell) > size else cell, size
            )
            for cell, size in zip(row, widths, strict=True)
            if size
        ]
        lines.append((" " * _GAP).join(shown).rstrip())
    return lines


def _fitting_widths(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """Return the widths of the columns for a line of `width` cells, 0 for one that is left out."""
    least = [
        min(size, _MIN_SHORTENED) if column.is_shortened else size
        for column, size in zip(columns, widths, strict=True)
    ]
    for i in sorted(range(len(columns)), key=lambda i: columns[i].left_out):
        if columns[i].left_out and _total(least) > width:
            least[i] = 0
    fitting = list(least)
    # The later ones of two shortened columns get what the earlier ones leave of their halves.
    growing = [i for i, column in enumerate(columns) if column.is_shortened and least[i]]
    for number, i in enumerate(growing):
        free = max(0, width - _total(fitting))
        fitting[i] = min(widths[i], least[i] + free // (len(growing) - number))
    return fitting


def _total(widths: Iterable[int]) -> int:
    shown = [size for size in widths if size]
    return sum(shown) + _GAP * (len(shown) - 1)


def print_found(found: "Found") -> None:
    """Print one search result, with the match in bold on a terminal."""
    head = f"{found.session_id[:SHORT_ID]}  {found.title}"
    print_match(head, found.excerpt, found.start, found.end)


def print_match(head: str, excerpt: str, start: int, end: int) -> None:
    """Print where a match is and its excerpt, in which it is bold on a terminal."""
    head = f"{sanitize(head)}  "
    if not sys.stdout.isatty():
        print(f"{head}\t{sanitize(excerpt)}")
        return
    from rich.console import Console
    from rich.text import Text

    text = Text(sanitize(excerpt))
    text.stylize("bold", start, end)
    Console(highlight=False, soft_wrap=True).print(Text(head, "dim"), text, sep="\n    ")
