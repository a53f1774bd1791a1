"""Tables of two columns in help texts."""

from collections.abc import Iterable


def two_columns(rows: Iterable[tuple[str, str]]) -> str:
    """Format rows in two columns, indented by two; a long left cell gets its own line."""
    rows = list(rows)
    width = max(len(left) for left, _ in rows if len(left) <= 28)
    lines = []
    for left, right in rows:
        lines += [f"  {left}"] if len(left) > width else []
        lines.append(f"  {'' if len(left) > width else left:{width}}  {right}".rstrip())
    return "\n".join(lines)
