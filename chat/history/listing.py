"""Lists of conversations and search results on stdout."""

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from swiftchat.chat.history.conversation import SHORT_ID
from swiftchat.chat.terminal.sanitize import sanitize

if TYPE_CHECKING:  # SQLite is not needed before the first list
    from swiftchat.chat.history.search import Found

_WIDTHS = {"": 1, "ID": SHORT_ID, "USED": 16, "MESSAGES": 8}


def format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def print_table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table that fits the terminal; in a pipe, full values separated by tabs, no titles."""
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(" ".join(sanitize(cell).split()) for cell in row))
        return
    # Imported here: a pipe does not need it, and it takes 50 ms.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        # On a narrow terminal ids stay complete, because the user types them.
        may_shrink = title in ("MODEL", "TITLE")
        table.add_column(
            title,
            no_wrap=True,
            overflow="ellipsis",
            min_width=None if may_shrink else _WIDTHS[title],
        )
    for row in rows:
        table.add_row(*(Text(" ".join(sanitize(cell).split())) for cell in row))
    Console(highlight=False).print(table)


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
