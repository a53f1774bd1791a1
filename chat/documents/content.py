"""What the reader of a format returns: a document in pages, and errors about it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

INSTALL_HINT = "pip install 'swiftchat[documents]'"


class Unreadable(Exception):
    """A document that has no text for a reason that a user can understand; `hint` is what to do."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason, self.hint = reason, hint


@dataclass(frozen=True)
class Page:
    """A page, slide or sheet as Markdown; `heading` is empty in a document without pages."""

    heading: str
    text: str


@dataclass(frozen=True)
class Content:
    """The pages of a document, made one after the other; `notes` grow meanwhile."""

    pages: Iterable[Page]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class PageRange:
    """The pages that are wanted, counted from 1; `last` None means to the end."""

    first: int = 1
    last: int | None = None

    @property
    def is_whole(self) -> bool:
        return self.first == 1 and self.last is None

    def numbers(self, num_pages: int, noun: str) -> range:
        """Return the numbers of the pages. Raises `Unreadable` if the document has fewer."""
        last = num_pages if self.last is None else self.last
        if not 1 <= self.first <= last <= num_pages and not self.is_whole:
            wanted = self.first if self.first in (last, self.last) else f"{self.first}-{last}"
            raise Unreadable(f"has {num_pages} {noun}s, no {noun} {wanted}", f"NAME#1-{num_pages}")
        return range(self.first, last + 1)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table of Markdown; the first one is its head."""
    width = max(map(len, rows), default=0)
    if not width:
        return ""
    # Only the head needs all cells: one wide row would make all others long.
    head = [*rows[0], *[""] * (width - len(rows[0]))]
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in (head, *rows[1:])]
    lines.insert(1, "|" + " --- |" * width)
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
