"""Markdown blocks as terminal rows."""

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from swiftchat.chat.render.blocks import Block
from swiftchat.chat.render.highlight import Highlighter
from swiftchat.chat.render.inline import Inline
from swiftchat.chat.render.math import formula
from swiftchat.chat.render.style import Style
from swiftchat.chat.render.table import TableRows
from swiftchat.chat.terminal.sanitize import sanitize

_HEADINGS = {"1": "bold underline", "2": "bold", "3": "bold italic", "4": "italic underline"}
_MAX_RULE_COLUMNS = 60
_PLAIN_MARKERS = {"•": "-", "☐": "- [ ]", "☑": "- [x]"}


class Tail(NamedTuple):
    """The rows of the unfinished blocks.

    `num_pinned`: how many of the first ones stay if there are too many, the head of a table.
    """

    rows: list[Text]
    num_pinned: int = 0


class MarkdownRows:
    """Renders the blocks of one text in order and numbers its fences from 1.

    In the accessible style the rows are readable without styles and line drawing: headings keep
    their `#`, quotes their `>`, and tables become lists of cells.
    """

    def __init__(self, style: Style) -> None:
        self.num_fences = 0
        self._marks = style.mode == "accessible"
        self._inline = Inline(self._marks, style.has_links)
        self._highlighter = Highlighter("")
        self._table = TableRows(self._inline)
        self._carried = Text()  # the last, incomplete row of a paragraph or line in parts
        self._console = Console(width=80)  # rich reads the tab size from it

    def render(self, block: Block, width: int, max_rows: int | None = None) -> list[Text]:
        """Return the rows of a block, including a blank row before it.

        Each row takes at most `width` columns. Of the rows of a table, only the head and the last
        `max_rows` are sure to be there.
        """
        first, others = self._prefixes(block, width)
        carried = [self._carried] if block.starts and self._carried else []
        self._carried = Text() if block.starts else self._carried
        rows = self._unprefixed(block, max(1, width - first.cell_len), max_rows)
        rows = [(others if i else first) + row for i, row in enumerate(rows)]
        for row in rows:
            row.rstrip()
        if block.gap is None:
            return [*carried, *rows]
        return [*carried, Text(" ".join([self._bar] * block.gap), "dim"), *rows]

    def preview(self, blocks: Sequence[Block], width: int, max_rows: int) -> Tail:
        """Return the rows of unfinished blocks; the next call of `render` does not depend on it."""
        preview = copy.copy(self)
        preview._highlighter, preview._table = copy.copy(self._highlighter), copy.copy(self._table)
        rows = [row for block in blocks for row in preview.render(block, width, max_rows)]
        has_head = bool(blocks) and blocks[-1].kind == "table" and blocks[-1].starts
        num_pinned = len(preview._table.head_rows) if has_head else 0
        return Tail(rows, num_pinned)

    @property
    def _bar(self) -> str:
        return ">" if self._marks else "▌"

    def _prefixes(self, block: Block, width: int) -> tuple[Text, Text]:
        """Return the quote bars and list markers of a block's first row and of its others."""
        first, others = Text(), Text()
        num_earlier = len(block.path) - block.num_opened
        for i, container in enumerate(block.path):
            marker = self._bar if container.kind == "quote" else container.marker
            mark = f"{_PLAIN_MARKERS.get(marker, marker) if self._marks else marker} "
            blank = Text(" " * cell_len(mark))
            if container.kind == "quote":
                first, others = first + Text(mark, "dim"), others + Text(mark, "dim")
            else:
                first, others = first + (blank if i < num_earlier else Text(mark)), others + blank
            if first.cell_len > width // 2:  # too deeply nested to show the nesting
                return Text(" " * (width // 2)), Text(" " * (width // 2))
        return first, others

    def _unprefixed(self, block: Block, width: int, max_rows: int | None) -> list[Text]:
        match block.kind:
            case "heading":
                marks = f"{'#' * int(block.info)} " if self._marks else ""
                text = Text(marks) + self._inline.styled(block.content, block.is_growing)
                text.stylize(_HEADINGS.get(block.info, "italic"))
                text.stylize("swiftchat.heading")
                return self._flowing(text, block, width)
            case "rule":
                line = "-" * 3 if self._marks else "─" * min(width, _MAX_RULE_COLUMNS)
                return [Text(line, "dim")]
            case "fence":
                return self._fence(block, width)
            case "code":
                return _folded(Text(sanitize(block.content.rstrip("\n"))), width)
            case "math":
                source = block.content
                return _folded(
                    Text(source if self._marks else formula(source, block.is_growing)), width
                )
            case "table":
                return self._table.render(block, width, max_rows)
            case "plain":
                return self._plain(block, width)
            case _:
                text = self._inline.styled(block.content, block.is_growing)
                return self._flowing(text, block, width)

    def _flowing(self, text: Text, block: Block, width: int) -> list[Text]:
        """Wrap text between words."""
        text = self._carried + text
        rows = list(text.wrap(self._console, width, overflow="fold", tab_size=4)) or [Text()]
        self._carried = Text() if block.ends else rows.pop()
        return rows

    def _fence(self, block: Block, width: int) -> list[Text]:
        if block.starts:
            self.num_fences += 1
            language = block.info.strip().split(" ")[0] if block.info.strip() else ""
            self._highlighter = Highlighter(language)
            if self._marks:
                name = f"code {self.num_fences}{', ' if language else ''}{language}:"
                return _folded(Text(name), width)
            name = f"[{self.num_fences}] {language}".strip()
            line = "─" * (min(width, _MAX_RULE_COLUMNS) - cell_len(name) - 1)
            return _folded(Text(f"{name} {line}" if line else name, "dim"), width)[:1]
        if block.ends:
            line = "end of code" if self._marks else "─" * min(width, _MAX_RULE_COLUMNS)
            return [Text(line, "dim")]
        return _folded(self._highlighter.styled(sanitize(block.content)), width)

    def _plain(self, block: Block, width: int) -> list[Text]:
        """Cut a line at the full width."""
        text = self._carried + Text(sanitize(block.content).expandtabs(4))
        rows = _folded(text, width)
        self._carried = Text() if block.ends else rows.pop()
        return rows


def _folded(text: Text, width: int) -> list[Text]:
    """Cut lines at the full width and not between words: for code and formulas."""
    rows: list[Text] = []
    text.expand_tabs(4)
    for line in text.split("\n", allow_blank=True):
        parts = chop_cells(line.plain, max(1, width))
        rows += line.divide(_ends(parts)) if len(parts) > 1 else [line]
    return rows


def _ends(parts: Sequence[str]) -> list[int]:
    ends = [0]
    for part, _ in pairwise(parts):
        ends.append(ends[-1] + len(part))
    return ends[1:]
