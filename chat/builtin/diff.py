"""What a change of a text changes, line by line, as it is shown before it is made."""

import difflib
from collections.abc import Iterator
from io import StringIO

from swiftchat.chat.terminal.sanitize import escape_invisible

_CONTEXT = 3  # lines
_MAX_COMPARED = 3000  # lines; the comparison takes the square of them

Row = tuple[str, str]


def diff_rows(old: str, new: str) -> list[Row]:
    """Return the rows of a unified diff of two texts, each with its part of the theme.

    Nothing in a row is invisible: what has no glyph is escaped, and the lack of a line end noted.
    """
    old_lines, new_lines = (StringIO(text, newline="\n").readlines() for text in (old, new))
    begin = _num_equal(old_lines, new_lines)
    end = _num_equal(old_lines[begin:][::-1], new_lines[begin:][::-1])
    old_part = old_lines[begin : len(old_lines) - end]
    new_part = new_lines[begin : len(new_lines) - end]
    before = old_lines[max(0, begin - _CONTEXT) : begin]
    after = old_lines[len(old_lines) - end :][:_CONTEXT]
    if max(len(old_part), len(new_part)) > _MAX_COMPARED:
        changed = [f"-{line}" for line in old_part] + [f"+{line}" for line in new_part]
        lines = [f" {line}" for line in before] + changed + [f" {line}" for line in after]
        rows = [("notice", f"@@ from line {max(1, begin - len(before) + 1)} @@"), *_rows(lines)]
    else:
        hunks = difflib.unified_diff(
            [*before, *old_part, *after], [*before, *new_part, *after], n=_CONTEXT
        )
        rows = list(_hunk_rows(list(hunks)[2:], begin - len(before)))
    return rows


def counts(rows: list[Row]) -> str:
    """Return how many lines a diff adds and removes, as `+3 −1`."""
    parts = [part for part, _ in rows]
    return f"+{parts.count('added')} −{parts.count('removed')}"


def _num_equal(first: list[str], second: list[str]) -> int:
    """Return how many lines are equal at the beginning of both."""
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return number
    return min(len(first), len(second))


def _hunk_rows(lines: list[str], num_before: int) -> Iterator[Row]:
    """Yield rows of a diff whose texts have so many lines before them."""
    for line in lines:
        if line.startswith("@@"):
            first = int(line.split()[2].lstrip("+").partition(",")[0])
            yield "notice", f"@@ from line {num_before + max(1, first)} @@"
        else:
            yield from _rows([line])


def _rows(lines: list[str]) -> Iterator[Row]:
    parts = {"+": "added", "-": "removed"}
    for line in lines:
        text = line.removesuffix("\n")
        end = "" if line.endswith("\n") else "   (no line end)"
        shown = escape_invisible(text[1:].expandtabs(4))
        yield parts.get(line[0], "notice"), f"{line[0]} {shown}{end}"
