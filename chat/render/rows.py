"""Markdown blocks as terminal rows."""

from collections.abc import Sequence
from itertools import pairwise

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from swiftchat.chat.render.blocks import Block
from swiftchat.chat.render.highlight import Highlighter
from swiftchat.chat.render.inline import styled
from swiftchat.chat.render.table import TableRows
from swiftchat.chat.terminal.sanitize import sanitize

_HEADINGS = {"1": "bold underline", "2": "bold"}
_MAX_RULE_COLUMNS = 60


class MarkdownRows:
    """Renders the blocks of one text in order and numbers its fences from 1.

    With `marks` the rows are readable without styles and line drawing, for screen readers:
    headings keep their `#`, quotes their `>`, and tables become lists of cells.
    """

    def __init__(self, marks: bool = False) -> None:
        self.num_fences = 0
        self._marks = marks
        self._highlighter = Highlighter("")
        self._fence_prefix = ""  # left of the open fence
        self._table = TableRows(marks)
        self._overlong = ""  # the last, incomplete row of an overlong line
        self._console = Console(width=80)  # rich reads the tab size from it

    def render(self, block: Block, width: int) -> list[Text]:
        """Return the rows of a block, including a blank row before it.

        Each row takes at most `width` columns.
        """
        first, others = self._prefixes(block, width)
        if block.kind == "fence":
            self._fence_prefix = others.plain
        rows = self._unprefixed(block, max(1, width - first.cell_len))
        rows = [(others if i else first) + row for i, row in enumerate(rows)]
        for row in rows:
            row.rstrip()
        if block.gap is None:
            return rows
        return [Text(" ".join([self._bar] * block.gap), "dim"), *rows]

    def unfinished_code(self, line: str, width: int) -> str:
        """Indent an incomplete line of the open fence as its complete row will be."""
        prefix = self._fence_prefix
        return prefix + _indent(width - len(prefix)) + line.removeprefix(prefix)

    @property
    def _bar(self) -> str:
        return ">" if self._marks else "▌"

    def _prefixes(self, block: Block, width: int) -> tuple[Text, Text]:
        """Return the quote bars and list markers of a block's first row and of its others."""
        first, others = Text(), Text()
        num_earlier = len(block.path) - block.num_opened
        for i, container in enumerate(block.path):
            mark = f"{self._bar if container.kind == 'quote' else container.marker} "
            if self._marks and container.marker == "•":
                mark = "- "
            blank = Text(" " * cell_len(mark))
            if container.kind == "quote":
                first, others = first + Text(mark, "dim"), others + Text(mark, "dim")
            else:
                first, others = first + (blank if i < num_earlier else Text(mark)), others + blank
            if first.cell_len > width // 2:  # too deeply nested to show the nesting
                return Text(" " * (width // 2)), Text(" " * (width // 2))
        return first, others

    def _unprefixed(self, block: Block, width: int) -> list[Text]:
        match block.kind:
            case "heading":
                marks = f"{'#' * int(block.info)} " if self._marks else ""
                text = Text(marks) + styled(block.content, self._marks)
                text.stylize(_HEADINGS.get(block.info, "bold italic"))
                text.stylize("swiftchat.heading")
                return self._wrapped(text, width)
            case "rule":
                line = "-" * 3 if self._marks else "─" * min(width, _MAX_RULE_COLUMNS)
                return [Text(line, "dim")]
            case "fence":
                return self._fence(block, width)
            case "code":
                return _folded(Text(sanitize(block.content.rstrip("\n"))), width)
            case "math":
                return _folded(Text(block.content), width)
            case "table":
                return self._table.render(block, width)
            case "plain":
                return self._plain(block, width)
            case _:
                return self._wrapped(styled(block.content, self._marks), width)

    def _wrapped(self, text: Text, width: int) -> list[Text]:
        return list(text.wrap(self._console, width, overflow="fold", tab_size=4))

    def _fence(self, block: Block, width: int) -> list[Text]:
        if block.starts:
            self.num_fences += 1
            language = block.info.strip().split(" ")[0] if block.info.strip() else ""
            self._highlighter = Highlighter(language)
            if self._marks:
                name = f"code {self.num_fences}{', ' if language else ''}{language}:"
                return _folded(Text(name), width)
            return _folded(Text(f"[{self.num_fences}] {language}", "dim"), width)[:1]
        if not block.content:
            return [Text("end of code")] if block.ends and self._marks else []
        indent = Text(_indent(width))
        rows = _folded(self._highlighter.styled(sanitize(block.content)), width - len(indent))
        return [indent + row for row in rows]

    def _plain(self, block: Block, width: int) -> list[Text]:
        rows = chop_cells(self._overlong + sanitize(block.content).expandtabs(4), width) or [""]
        self._overlong = "" if block.ends else rows.pop()
        return [Text(row) for row in rows]


def _indent(width: int) -> str:
    return "  " if width > 8 else ""


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
