"""Help pages in windows of any width."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator

_MAX_WIDTH = 100  # longer lines are hard to read
_PIPE_WIDTH = 80
_MIN_RIGHT = 20  # columns for what a row says; with less it goes below
_ROW = re.compile(r"(?P<left> +\S+(?: \S+)*)(?:(?P<gap>  +)(?P<right>\S.*))?")


def page_width() -> int:
    """Return the width of help pages: that of the terminal, up to 100 columns; 80 in a pipe."""
    if not sys.stdout.isatty():
        return _PIPE_WIDTH
    return min(shutil.get_terminal_size().columns, _MAX_WIDTH)


def wrapped(text: str, width: int) -> str:
    """Return a page for a window of `width` columns.

    Lines that are not indented are paragraphs, whose lines are filled again. An indented line is an
    example, which stays as it is, or a row of two columns with at least two blanks between them: a
    long right column goes on under its beginning, or in narrow windows below the left column. A
    line that begins where the right column of the row above does belongs to it.
    """
    return "".join(f"{line}\n" for part in _parts(text) for line in _filled(part, width))


def _parts(text: str) -> Iterator[str]:
    """Yield paragraphs, rows and blank lines, each in one line."""
    part, column = "", 0  # of the text that a line may go on with; 0: a paragraph
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if line and part and indent == column:
            part += f" {line.strip()}"
            continue
        if part:
            yield part
        part, column = line, 0
        row = _ROW.fullmatch(line)
        if row is not None:
            column = row.start("right") if row["right"] else -1
        elif not line:
            yield ""
    if part:
        yield part


def _filled(part: str, width: int) -> list[str]:
    row = _ROW.fullmatch(part)
    if row is None:
        return textwrap.wrap(part, width, break_long_words=False, break_on_hyphens=False) or [""]
    left, right = row["left"], row["right"]
    if len(part) <= width or not right:
        return [part]
    column = row.start("right")
    is_below = width - column < _MIN_RIGHT
    indent = " " * (len(left) - len(left.lstrip()) + 4 if is_below else column)
    lines = textwrap.wrap(
        right,
        max(width, len(indent) + 1),
        initial_indent=indent if is_below else left + row["gap"],
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [left, *lines] if is_below else lines
