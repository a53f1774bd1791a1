"""Texts in pieces: a few paragraphs, or a function, with the place where they stand."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_MIN_CHARACTERS, _MAX_CHARACTERS = 300, 1200
# The headings of documents; the parts of other texts are named by lines.
_PAGE = re.compile(r"## (?:Page|Slide|Sheet) (\d+)\b")
_BEGINS = re.compile(r"#{1,6} |(?:async )?def |class |fn |func |function |pub |impl |export ")


@dataclass(frozen=True)
class Piece:
    """A part of a text; `place` is `:12`, its first line, or `#3`, its page."""

    place: str
    text: str


def pieces_of(text: str, *, has_pages: bool = False) -> Iterator[Piece]:
    """Yield the pieces of a text in order; together they have all of its words.

    A piece ends where a heading or a function begins, behind a blank line if it is long, or where
    it would have more than 1200 characters. With `has_pages` no piece has parts of two pages.
    """
    begin, size, page = 1, 0, 0
    lines: list[str] = []

    def piece() -> Piece:
        return Piece(f"#{page}" if page else f":{begin}", "\n".join(lines).strip("\n"))

    for number, line in enumerate(text.split("\n"), 1):
        new_page = _PAGE.match(line) if has_pages else None
        is_full = size + len(line) > _MAX_CHARACTERS
        may_end = size >= _MIN_CHARACTERS and (_BEGINS.match(line) or not lines[-1].strip())
        if lines and (new_page or is_full or may_end):
            yield piece()
            lines, size = [], 0
        page = int(new_page[1]) if new_page else page
        if not lines:  # a piece begins with words
            if not line.strip():
                continue
            begin = number
        while len(line) > _MAX_CHARACTERS:  # as in a file without line ends
            lines, line = [line[:_MAX_CHARACTERS]], line[_MAX_CHARACTERS:]
            yield piece()
            lines = []
        lines.append(line)
        size += len(line) + 1
    if lines:
        yield piece()
