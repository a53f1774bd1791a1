"""Tables of two columns in help texts."""

import textwrap
from collections.abc import Iterable

_MAX_LEFT = 28  # a longer cell of the left column gets its own line
_MIN_RIGHT = 20


def two_columns(rows: Iterable[tuple[str, str]], width: int = 80) -> str:
    """Format rows in two columns, indented by two; long cells are broken between words.

    On a narrow terminal the right column is below the left one.
    """
    rows = list(rows)
    left_width = max(len(left) for left, _ in rows if len(left) <= _MAX_LEFT)
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
