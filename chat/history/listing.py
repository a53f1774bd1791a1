"""Lists of conversations and search results on stdout."""

import shutil
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from swiftchat.chat.history.conversation import SHORT_ID
from swiftchat.chat.terminal.sanitize import sanitize

if TYPE_CHECKING:  # SQLite is not needed before the first list
    from swiftchat.chat.history.search import Found

_WIDTHS = {"": 1, "ID": SHORT_ID, "USED": 16, "MESSAGES": 8, "MODEL": 6, "TITLE": 6}
_GAP = 2
_SHORTENED = ("MODEL", "TITLE")
_OPTIONAL = ("MESSAGES", "MODEL", "USED")  # left out in this order


def format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def print_table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table that fits the terminal; in a pipe, full values separated by tabs, no titles.

    On a narrow terminal the number of messages, the model and the time are left out, and the rest
    of a model's name and of a title. Ids stay complete, because the user types them.
    """
    cells = [tuple(" ".join(sanitize(cell).split()) for cell in row) for row in rows]
    if not sys.stdout.isatty():
        for row in cells:
            print("\t".join(row))
        return
    # Imported here: a pipe does not need it, and it takes 50 ms.
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = shutil.get_terminal_size().columns
    shown = fitting_titles(titles, width)
    free = width - sum(_WIDTHS[title] + _GAP for title in shown if title not in _SHORTENED)
    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold")
    for title in shown:
        size = _WIDTHS[title]
        if title in _SHORTENED:
            longest = max((cell_len(row[titles.index(title)]) for row in cells), default=0)
            size = max(size, min(longest, free // (1 + (title == "MODEL")) - _GAP))
            free -= size + _GAP
        table.add_column(title, no_wrap=True, overflow="ellipsis", width=size)
    for row in cells:
        pairs = zip(titles, row, strict=True)
        table.add_row(*(Text(cell) for title, cell in pairs if title in shown))
    Console(highlight=False).print(table)


def fitting_titles(titles: tuple[str, ...], width: int) -> list[str]:
    """Return the titles of the columns that fit `width` cells; optional ones are left out first."""
    shown = list(titles)
    for title in _OPTIONAL:
        if title in shown and sum(_WIDTHS[one] + _GAP for one in shown) > width:
            shown.remove(title)
    return shown


def print_found(found: "Found") -> None:
    """Print one search result, with the match in bold on a terminal."""
    head = f"{found.session_id[:SHORT_ID]}  {sanitize(found.title)}  "
    if not sys.stdout.isatty():
        print(f"{head}\t{sanitize(found.excerpt)}")
        return
    from rich.console import Console
    from rich.text import Text

    text = Text(sanitize(found.excerpt))
    text.stylize("bold", found.start, found.end)
    Console(highlight=False, soft_wrap=True).print(Text(head, "dim"), text, sep="\n    ")
