"""Tables of two columns in help texts."""

import textwrap
from collections.abc import Iterable, Mapping

_MAX_LEFT = 28  # a longer cell of the left column gets its own line
_MIN_RIGHT = 20


def two_columns(rows: Iterable[tuple[str, str]], width: int = 80) -> str:
    """Format rows in two columns, indented by two; long cells are broken between words.

    On a narrow terminal the right column is below the left one.
    """
    rows = list(rows)
    return _columns(rows, _left_width(rows), width)


def grouped_columns(groups: Mapping[str, Iterable[tuple[str, str]]], width: int = 80) -> str:
    """Format groups of rows as `two_columns` of the same widths, each below its heading."""
    rows = {heading: list(group) for heading, group in groups.items()}
    left_width = _left_width([row for group in rows.values() for row in group])
    return "\n\n".join(
        f"{heading}:\n{_columns(group, left_width, width)}" for heading, group in rows.items()
    )


def _left_width(rows: Iterable[tuple[str, str]]) -> int:
    return max(len(left) for left, _ in rows if len(left) <= _MAX_LEFT)


def _columns(rows: Iterable[tuple[str, str]], left_width: int, width: int) -> str:
    is_narrow = width - left_width - 4 < _MIN_RIGHT
    indent = " " * (6 if is_narrow else left_width + 4)
    lines = []
    for left, right in rows:
        is_own_line = is_narrow or len(left) > left_width
        lines += [f"  {left}"] if is_own_line else []
        wrapped = textwrap.wrap(
            right,
            max(width, len(indent) + 1),
            initial_indent=indent if is_own_line else f"  {left:{left_width}}  ",
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += wrapped if right else [] if is_own_line else [f"  {left}".rstrip()]
    return "\n".join(lines)
