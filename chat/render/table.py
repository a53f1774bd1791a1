"""Tables of Markdown in columns, or cell by cell where they do not fit."""

from itertools import zip_longest

from rich.console import Console
from rich.text import Text

from swiftchat.chat.render.blocks import Block
from swiftchat.chat.render.inline import styled

_BETWEEN = " │ "
_NARROWEST = 5  # columns narrower than this are not worth having
_LONGEST_CELL = 1000


class TableRows:
    """Turns tables into rows; a long one comes in parts, with the columns of its first."""

    def __init__(self, as_list: bool = False) -> None:
        self._as_list = as_list
        self._widths: list[int] = []
        self._width = 0
        self._console = Console(width=80)

    def of(self, block: Block, width: int) -> list[Text]:
        head, *body = [[self._cell(cell) for cell in row] for row in block.rows]
        if self._as_list or len(head) * (_NARROWEST + len(_BETWEEN)) > width + len(_BETWEEN):
            return [row for cells in body for row in self._listed(head, cells, width)]
        if block.starts or width != self._width:
            self._width = width
            self._widths = _widths([head, *body], width - len(_BETWEEN) * (len(head) - 1))
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
        if len(content) > _LONGEST_CELL:
            return Text(content)
        text = styled(content, self._as_list)
        parts = [part for line in text.split("\n") for part in _at_breaks(line)]
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
        between, rows = Text.assemble((_BETWEEN, "dim")), []
        for parts in zip_longest(*columns):
            full = [p or Text(" " * w) for p, w in zip(parts, self._widths, strict=True)]
            rows.append(between.join(full))
        return rows

    def _listed(self, head: list[Text], cells: list[Text], width: int) -> list[Text]:
        rows: list[Text] = []
        for i, (name, cell) in enumerate(zip(head, cells, strict=True)):
            line = Text("  " if i else "- ") + name + Text(": ") + Text(" ").join(cell.split("\n"))
            rows += line.wrap(self._console, width, overflow="fold")
        return rows


def _at_breaks(line: Text) -> list[Text]:
    """A cell cannot have two lines in Markdown; models write <br> there."""
    text = line.plain
    for mark in ("<br>", "<br/>", "<br />"):
        if mark in text:
            before, after = text.index(mark), text.index(mark) + len(mark)
            return [line[:before], *_at_breaks(line[after:])]
    return [line]


def _widths(rows: list[list[Text]], room: int) -> list[int]:
    """Each column as wide as its widest cell, or the widest columns cut down to what there is."""
    wanted = [
        max(1, *(max((line.cell_len for line in row[i].split("\n")), default=0) for row in rows))
        for i in range(len(rows[0]))
    ]
    left, share = room, 0
    for num_left, width in zip(range(len(wanted), 0, -1), sorted(wanted), strict=True):
        share = max(1, left // num_left)
        left -= min(width, share)
    return [min(width, share) for width in wanted]
