"""Markdown tables as terminal columns, or as lists of cells if the columns do not fit."""

from functools import lru_cache
from itertools import zip_longest

from rich.console import Console
from rich.text import Text

from swiftchat.chat.render.blocks import Block
from swiftchat.chat.render.half_open import completed
from swiftchat.chat.render.inline import Inline
from swiftchat.chat.render.parse import parser

_SEPARATOR = " │ "
_MIN_COLUMN_WIDTH = 5
_CACHED_CELLS = 4096


class TableRows:
    """Renders tables; the parts of a long table keep the column widths of its first part.

    A shallow copy goes on from the same place.
    """

    def __init__(self, inline: Inline) -> None:
        self._inline = inline
        self._natural: list[int] = []  # widths of the columns of the first part, uncut
        self._widths: list[int] = []
        self._console = Console(width=80)
        self.head_rows: list[Text] = []  # of the last table, if it has columns

    def render(self, block: Block, width: int, max_rows: int | None = None) -> list[Text]:
        """Return the rows of a table block, at most `width` columns wide.

        Of the rows below the head, only the last `max_rows` are sure to be there.
        """
        head, *body = rows = _with_complete_end(block) if block.is_growing else block.rows
        if block.starts:
            columns = zip(*rows, strict=True)
            self._natural = [max(map(self._natural_width, column)) for column in columns]
        cells = [self._cells(row) for row in (body[-max_rows:] if max_rows else body)]
        min_width = len(head) * (_MIN_COLUMN_WIDTH + len(_SEPARATOR)) - len(_SEPARATOR)
        names = self._cells(head)
        if self._inline.marks or min_width > width:
            self.head_rows = []
            return [row for parts in cells for row in self._listed(names, parts, width)]
        self._widths = _fitted(self._natural, width - len(_SEPARATOR) * (len(head) - 1))
        if block.starts:
            for name in names:
                name.stylize("bold")
            line = "─┼─".join("─" * width for width in self._widths)
            self.head_rows = [*self._in_columns(names, block.aligns), Text(line, "dim")]
        below = [row for parts in cells for row in self._in_columns(parts, block.aligns)]
        return [*self.head_rows, *below] if block.starts else below

    def _cells(self, row: tuple[str, ...]) -> list[Text]:
        return [_styled(self._inline, cell).copy() for cell in row]

    def _natural_width(self, cell: str) -> int:
        return max(1, *(line.cell_len for line in _styled(self._inline, cell).split("\n")), 0)

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
            line = name + Text(": ") + Text(" ").join(cell.split("\n"))
            found = line.wrap(self._console, max(1, width - 2), overflow="fold")
            rows += [Text("  " if i or j else "- ") + row for j, row in enumerate(found)]
        return rows


def _with_complete_end(block: Block) -> tuple[tuple[str, ...], ...]:
    """Return the rows of a growing table; the elements in its last cell are closed."""
    *rows, last = block.rows
    growing = max((i for i, cell in enumerate(last) if cell), default=0)
    end = completed(last[growing], parser())
    return (*rows, (*last[:growing], end, *last[growing + 1 :]))


@lru_cache(_CACHED_CELLS)  # a growing table is drawn again and again
def _styled(inline: Inline, cell: str) -> Text:
    """Return the text of a cell, which must not be changed."""
    return inline.styled(cell)


def _fitted(natural: list[int], total: int) -> list[int]:
    """Return column widths of at most `total` together; only the widest columns are cut."""
    left, widths = total, list(natural)
    by_width = sorted(range(len(natural)), key=natural.__getitem__)
    for num_left, column in zip(range(len(natural), 0, -1), by_width, strict=True):
        widths[column] = min(natural[column], max(1, left // num_left))
        left -= widths[column]
    return widths
