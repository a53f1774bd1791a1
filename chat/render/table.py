"""Markdown tables as terminal columns, or as lists of cells if the columns do not fit."""

from itertools import zip_longest

from rich.console import Console
from rich.text import Text

from swiftchat.chat.render.blocks import Block
from swiftchat.chat.render.inline import styled

_SEPARATOR = " │ "
_MIN_COLUMN_WIDTH = 5
_MAX_STYLED_CHARS = 1000  # a longer cell is shown as plain text


class TableRows:
    """Renders tables; the parts of a long table keep the column widths of its first part."""

    def __init__(self, as_list: bool = False) -> None:
        self._as_list = as_list
        self._widths: list[int] = []
        self._width = 0
        self._console = Console(width=80)

    def render(self, block: Block, width: int) -> list[Text]:
        """Return the rows of a table block, at most `width` columns wide."""
        head, *body = [[self._cell(cell) for cell in row] for row in block.rows]
        min_width = len(head) * (_MIN_COLUMN_WIDTH + len(_SEPARATOR)) - len(_SEPARATOR)
        if self._as_list or min_width > width:
            return [row for cells in body for row in self._listed(head, cells, width)]
        if block.starts or width != self._width:
            self._width = width
            self._widths = _widths([head, *body], width - len(_SEPARATOR) * (len(head) - 1))
        rows: list[Text] = []
        if block.starts:
            for cell in head:
                cell.stylize("bold")
            line = "─┼─".join("─" * width for width in self._widths)
            rows = [*self._in_columns(head, block.aligns), Text(line, "dim")]
        for cells in body:
            rows += self._in_columns(cells, block.aligns)
        return rows

    def _cell(self, content: str) -> Text:
        if len(content) > _MAX_STYLED_CHARS:
            return Text(content)
        text = styled(content, self._as_list)
        parts = [part for line in text.split("\n") for part in _split_at_breaks(line)]
        return Text("\n").join(parts)

    def _in_columns(self, cells: list[Text], aligns: tuple[str, ...]) -> list[Text]:
        columns = []
        for cell, width, align in zip(cells, self._widths, aligns, strict=True):
            lines = cell.wrap(self._console, width, overflow="fold") or [Text()]
            for line in lines:
                line.rstrip()
                missing = width - line.cell_len
                left = {"right": missing, "center": missing // 2}.get(align, 0)
                line.pad_left(left)
                line.pad_right(missing - left)
            columns.append(list(lines))
        separator, rows = Text.assemble((_SEPARATOR, "dim")), []
        for parts in zip_longest(*columns):
            full = [p or Text(" " * w) for p, w in zip(parts, self._widths, strict=True)]
            rows.append(separator.join(full))
        return rows

    def _listed(self, head: list[Text], cells: list[Text], width: int) -> list[Text]:
        rows: list[Text] = []
        for i, (name, cell) in enumerate(zip(head, cells, strict=True)):
            line = Text("  " if i else "- ") + name + Text(": ") + Text(" ").join(cell.split("\n"))
            rows += line.wrap(self._console, width, overflow="fold")
        return rows


def _split_at_breaks(line: Text) -> list[Text]:
    """Split at `<br>`, which models write because a Markdown cell cannot hold a newline."""
    text = line.plain
    for mark in ("<br>", "<br/>", "<br />"):
        if mark in text:
            before, after = text.index(mark), text.index(mark) + len(mark)
            return [line[:before], *_split_at_breaks(line[after:])]
    return [line]


def _widths(rows: list[list[Text]], total: int) -> list[int]:
    """Return column widths of at most `total` together; only the widest columns are cut."""
    natural = [
        max(1, *(max((line.cell_len for line in row[i].split("\n")), default=0) for row in rows))
        for i in range(len(rows[0]))
    ]
    left, limit = total, 0
    for num_left, width in zip(range(len(natural), 0, -1), sorted(natural), strict=True):
        limit = max(1, left // num_left)
        left -= min(width, limit)
    return [min(width, limit) for width in natural]
