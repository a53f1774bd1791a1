"""Incremental Markdown: find the finished blocks of a text that arrives line by line.

markdown-it-py parses the unfinished lines again with each new line. A block that is followed by
another block is final. Finished lines inside a fence or a table, and the beginning of a long
paragraph, are dropped from the buffer, so that the parsed text stays short however long the answer
is.

The result depends on the text only, not on the pieces in which it arrives.
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from swiftchat.chat.render.half_open import last_neutral_place
from swiftchat.chat.render.parse import Container, Kind, Leaf, parse_blocks, parser

# Limits of the text that is parsed at once; a longer unfinished block is cut there.
_MAX_PARSED_CHARS = 16_384
_MAX_PARSED_LINES = 300
_MAX_HELD_CELLS = 300  # of a table, held back to compute the column widths
_MAX_LINE_CHARS = 4096  # a longer line is shown unparsed, unless it is of a paragraph
_MAX_PARAGRAPH_CHARS = 1024  # a longer paragraph is yielded in parts
_MARKS = re.compile(r"[ \t]*(?:>|[-*+](?=[ \t])|\d{1,9}[.)](?=[ \t]))")
_MAX_MARKS = 30  # quote and list marks in one line; a line with more is shown unparsed
# Stands before the rest of a paragraph in the buffer, so that it cannot begin another block.
_CONTINUED = "\u2060"
# What an incomplete line shows that could still become a block of another kind.
_ONLY_MARKS = re.compile(
    r"[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*"
    r"(?:\d{1,9}[.)]?|\[[ xX]?\]?|#{1,6}|\$\$?|\\|`{1,3}|~{1,3}|[-*_+=|: \t]*)[ \t]*"
)
_FENCE_END = re.compile(r"[ \t>]*(?:`+|~+)[ \t]*")


@dataclass(frozen=True)
class Block:
    """A leaf block and its enclosing containers (`path`, outermost first).

    - `num_opened`: how many of the innermost containers begin with this block.
    - `content`: its text; for `fence` and `code` the code.
    - `info`: the language of a fence, the level of a heading.
    - `rows`: the cells of a table, the head first.
    - `gap`: None, or a blank line precedes the block and has this many quote marks.
    - `starts`, `ends`: False if another part of the same block precedes or follows.
    - `is_growing`: its text may end within an inline element.
    """

    kind: Kind
    path: tuple[Container, ...]
    num_opened: int
    content: str = ""
    info: str = ""
    rows: tuple[tuple[str, ...], ...] = ()
    aligns: tuple[str, ...] = ()
    gap: int | None = None
    starts: bool = True
    ends: bool = True
    is_growing: bool = False


class _Line(NamedTuple):
    text: str
    number: int
    num_quote_marks: int  # in the blank line before it


class BlockStream:
    """Accepts text in pieces of any size and yields finished blocks.

    It yields a fence line by line, and a long table, a long paragraph, or an overlong line in
    parts.
    """

    def __init__(self) -> None:
        self._partial = ""  # the incomplete line
        self._is_overlong = False
        self._is_continued = False  # the first unfinished leaf is the rest of a paragraph
        self._num_unchecked = 0  # characters since the last search for a long paragraph
        self._number = 0  # of the incomplete line
        self._num_quote_marks = 0
        self._is_after_blank = False
        self._lines: list[_Line] = []  # the buffer that is parsed
        self._num_emitted = 0  # leaves of `_lines` that were yielded
        self._order: int | None = None  # number of the first list item in `_lines`
        self._last = -1  # number of the last line that was yielded
        self._blanks: list[str] | None = None  # blank lines held back; None outside a fence
        self._table = _HeldTable()

    def push(self, text: str) -> Iterator[Block]:
        """Append text; yield the blocks that are finished now."""
        *lines, rest = text.split("\n")
        for line in lines:
            yield from self._append(line)
            yield from self._end_line()
        yield from self._append(rest)

    def finish(self) -> Iterator[Block]:
        """End the text; yield the remaining blocks."""
        if self._partial or self._is_overlong:
            yield from self._end_line()
        yield from self._flush()

    def pending(self) -> list[Block]:
        """Return the unfinished blocks as they will be when complete; the last one is growing.

        An incomplete line that has only marks so far is left out. A row with bars becomes the head
        of a table before the line below it arrives. A blank line at the end shows as a gap.
        """
        stream = copy.copy(self)
        stream._lines, stream._table = [*self._lines], replace(self._table)
        stream._blanks = None if self._blanks is None else [*self._blanks]
        marks = _FENCE_END if self.is_in_fence else _ONLY_MARKS
        line = "" if marks.fullmatch(self._partial) else self._partial
        blocks: list[Block] = []
        if self._is_overlong or (_has_too_many_marks(line) and not self.is_in_fence):
            blocks += stream._emit_unparsed(line, ends=True)
        elif line.strip():
            stream._lines.append(_Line(line, self._number, self._num_quote_marks))
        stream._add_delimiter_row()
        blocks += stream._flush()
        if self._blanks and not line.strip():
            blocks.insert(0, replace(blocks[0], content="\n".join(self._blanks), ends=False))
        elif self._is_after_blank and not line.strip() and stream._last >= 0:
            blocks.append(Block("plain", (), 0, gap=self._num_quote_marks))
        return [*blocks[:-1], *(replace(block, is_growing=True) for block in blocks[-1:])]

    def _add_delimiter_row(self) -> None:
        """Add the second line of a table if the last line looks like its head."""
        if not self._lines or "|" not in self._lines[-1].text:
            return
        leaf = parse_blocks([line.text for line in self._lines], self._order)[-1]
        head = leaf.content.split("\n")[-1].strip()
        is_last = leaf.kind == "paragraph" and leaf.end == len(self._lines)
        if is_last and head.startswith("|"):
            before = re.sub(r"[^>\t]", " ", self._lines[-1].text.partition("|")[0])
            num_cells = head.strip("|").count("|") + 1
            self._lines.append(_Line(before + "|-" * num_cells + "|", self._number, 0))

    @property
    def is_in_fence(self) -> bool:
        return self._blanks is not None

    def _append(self, text: str) -> Iterator[Block]:
        while text:
            # At fixed places of the text, so that the pieces in which it arrives do not matter.
            part = text[: _MAX_PARAGRAPH_CHARS - self._num_unchecked]
            self._partial, text = self._partial + part, text[len(part) :]
            self._num_unchecked += len(part)
            if self._num_unchecked == _MAX_PARAGRAPH_CHARS:
                self._num_unchecked = 0
                yield from self._emit_long_paragraph()
            if len(self._partial) >= _MAX_LINE_CHARS:
                part, self._partial = self._partial, ""
                yield from self._emit_unparsed(part, ends=False)

    def _end_line(self) -> Iterator[Block]:
        line, self._partial = self._partial, ""
        if self._is_overlong or _has_too_many_marks(line):
            yield from self._emit_unparsed(line, ends=True)
        else:
            self._lines.append(_Line(line, self._number, self._num_quote_marks))
            yield from self._emit_finished(is_end=False)
        self._is_after_blank = _is_blank(line)
        self._num_quote_marks = line.count(">") if self._is_after_blank else 0
        self._number += 1
        if self._is_too_long and not self.is_in_fence:  # whose lines are dropped anyway
            yield from self._cut()

    def _emit_long_paragraph(self) -> Iterator[Block]:
        """Yield the beginning of a long paragraph that includes the incomplete line."""
        is_prose = bool(self._partial.strip()) and not _has_too_many_marks(self._partial)
        if self.is_in_fence or self._is_overlong or not is_prose:
            return
        partial = _Line(self._partial, self._number, self._num_quote_marks)
        leaves = parse_blocks([line.text for line in (*self._lines, partial)], self._order)
        leaf = leaves[-1]
        is_last = leaf.kind == "paragraph" and leaf.end == len(self._lines) + 1
        if not is_last or len(leaf.content) <= _MAX_PARAGRAPH_CHARS:
            return
        self._lines.append(partial)
        yield from self._emit_finished(is_end=False)  # the blocks before it
        leaf = parse_blocks([line.text for line in self._lines], self._order)[-1]
        end = last_neutral_place(leaf.content, parser())
        starts = not self._is_continued
        yield self._block(leaf, leaf.content[:end].removeprefix(_CONTINUED), starts, ends=False)
        self._last = self._keep_rest(leaf, end)
        self._is_continued = True
        self._partial = self._lines.pop().text

    def _keep_rest(self, leaf: Leaf, end: int) -> int:
        """Remove the first `end` characters of a paragraph; return the number of its new line."""
        contents = leaf.content.split("\n")
        index = leaf.content.count("\n", 0, end)
        num_left = len(contents[index].rstrip()) - (end - leaf.content.rfind("\n", 0, end) - 1)
        first, line = self._lines[leaf.start].text.rstrip(), self._lines[leaf.start + index]
        before = first[: len(first) - len(contents[0].rstrip())]
        rest = line.text[len(line.text.rstrip()) - num_left :]
        continued = line._replace(text=before + _CONTINUED + rest)
        self._lines[leaf.start : leaf.start + index + 1] = [continued]
        return line.number

    @property
    def _is_too_long(self) -> bool:
        num_chars = sum(len(line.text) for line in self._lines)
        return len(self._lines) > _MAX_PARSED_LINES or num_chars > _MAX_PARSED_CHARS

    def _cut(self) -> Iterator[Block]:
        """Yield all buffered lines; later lines continue the containers of the last block."""
        leaves = parse_blocks([line.text for line in self._lines], self._order)
        path = leaves[-1].path if leaves else ()
        openings = [
            self._lines[start]._replace(text=_opening(self._lines[start].text, len(list(group))))
            for start, group in groupby(path, key=lambda container: container.start)
        ]
        item = next((container for container in path if container.kind == "item"), None)
        yield from self._flush()
        if not openings:
            return
        self._order = item.order if item and not item.is_first else None
        self._lines = [*openings, _Line("", openings[-1].number, 0)]
        self._num_emitted = len(parse_blocks([line.text for line in openings], self._order))
        if self._is_too_long:
            self._drop_lines(len(self._lines))

    def _emit_unparsed(self, part: str, ends: bool) -> Iterator[Block]:
        """Yield part of a line as plain text; inside a fence it continues the code."""
        starts, self._is_overlong = not self._is_overlong, not ends
        if starts and not self.is_in_fence:
            yield from self._flush()
        gap = 0 if starts and self._last >= 0 and self._number > self._last + 1 else None
        self._last = self._number
        yield Block("plain", (), 0, part, gap=gap, starts=starts, ends=ends)

    def _flush(self) -> Iterator[Block]:
        """Yield all buffered lines; later lines are parsed without them."""
        yield from self._emit_finished(is_end=True)
        self._drop_lines(len(self._lines))
        self._order = None

    def _emit_finished(self, is_end: bool) -> Iterator[Block]:
        leaves = parse_blocks([line.text for line in self._lines], self._order)
        blank_last = bool(self._lines) and _is_blank(self._lines[-1].text)
        while self._num_emitted < len(leaves):
            leaf = leaves[self._num_emitted]
            is_last = self._num_emitted + 1 == len(leaves)
            closed_by_blank = blank_last and leaf.end < len(self._lines) and leaf.kind != "code"
            is_finished = is_end or not is_last or leaf.is_closed or closed_by_blank
            if not is_end and self._may_become_table(leaf):
                break
            if leaf.kind == "fence":
                yield from self._emit_fence(leaf, is_finished)
            elif leaf.kind == "table":
                yield from self._emit_table(leaf, is_finished)
            elif is_finished:
                content = leaf.content.removeprefix(_CONTINUED)
                yield self._block(leaf, content, starts=not self._is_continued)
            if not is_finished:
                break
            self._last = max(self._last, self._table.last, self._lines[leaf.end - 1].number)
            self._num_emitted += 1
            self._is_continued = False
        self._drop_emitted(leaves)

    def _emit_fence(self, leaf: Leaf, is_finished: bool) -> Iterator[Block]:
        """Yield the new lines of a fence; trailing blank lines wait for a line after them."""
        if self._blanks is None:
            yield self._block(leaf, "", ends=False)
        blanks = self._blanks or []
        for line in leaf.content.split("\n")[:-1]:
            blanks.append(line)
            if line.strip():
                yield self._block(leaf, "\n".join(blanks), starts=False, ends=False)
                blanks = []
        self._blanks = None if is_finished else blanks
        if is_finished:
            yield self._block(leaf, "", starts=False)
        else:
            self._last = self._lines[leaf.end - 1].number
            del self._lines[leaf.start + 1 : leaf.end]
            # Remove the bars so that code cannot turn the opening line into a table head.
            opening = self._lines[leaf.start]
            self._lines[leaf.start] = opening._replace(text=opening.text.replace("|", " "))

    def _may_become_table(self, leaf: Leaf) -> bool:
        """Return whether the next line could turn this last line into the head of a table."""
        is_last_line = leaf.end == len(self._lines) and leaf.end - leaf.start == 1
        return is_last_line and "|" in self._lines[-1].text and leaf.kind in ("heading", "fence")

    def _emit_table(self, leaf: Leaf, is_finished: bool) -> Iterator[Block]:
        """Hold back the rows of an unfinished table, up to `_MAX_HELD_CELLS` cells."""
        table = self._table
        table.add(leaf.rows, self._lines[leaf.end - 1].number)
        # The first part decides on the widths.
        num_cells = len(table.rows) * len(table.head)
        if is_finished or num_cells > (0 if table.was_emitted else _MAX_HELD_CELLS):
            leaf.rows = [table.head, *table.rows]
            yield self._block(leaf, "", starts=not table.was_emitted, ends=is_finished)
            self._last = table.last
            table.rows, table.was_emitted = [], True
        if is_finished:
            self._table = _HeldTable(last=table.last)
        else:
            del self._lines[leaf.start + 2 : leaf.end]

    def _block(self, leaf: Leaf, content: str, starts: bool = True, ends: bool = True) -> Block:
        first = self._lines[leaf.first_line]
        gap = None
        if starts and self._last >= 0 and (first.number > self._last + 1 or leaf.kind == "heading"):
            gap = first.num_quote_marks
        return Block(
            leaf.kind,
            leaf.path,
            leaf.num_opened if starts else 0,
            content,
            leaf.info,
            tuple(leaf.rows),
            leaf.aligns,
            gap,
            starts,
            ends,
        )

    def _drop_emitted(self, leaves: list[Leaf]) -> None:
        """Drop the lines that cannot change how later lines are parsed."""
        if self._num_emitted < len(leaves):
            leaf = leaves[self._num_emitted]
            first = self._lines[leaf.first_line].text.expandtabs(4)
            # On its own an indented line would become a code block.
            is_indented = first.startswith(" " * 4)
            if self._num_emitted and leaf.stands_alone and not is_indented:
                item = next((c for c in leaf.path if c.kind == "item"), None)
                self._order = item.order if item and not item.is_first else None
                self._drop_lines(leaf.first_line)
        elif not leaves or not leaves[-1].path:
            self._drop_lines(len(self._lines))
            self._order = None

    def _drop_lines(self, num_lines: int) -> None:
        del self._lines[:num_lines]
        self._num_emitted = 0


@dataclass
class _HeldTable:
    """The cells of an unfinished table that are held back.

    `last` is the number of its last line; `was_emitted`: some of its rows were yielded.
    """

    head: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    last: int = -1
    was_emitted: bool = False

    def add(self, rows: list[tuple[str, ...]], last: int) -> None:
        """Add parsed rows, which repeat the head each time, up to the line numbered `last`."""
        self.head = rows[0]
        self.rows = [*self.rows, *rows[1:]]
        self.last = max(self.last, last)


def _opening(line: str, num_marks: int) -> str:
    """Return a line that opens the containers of the given number of marks, with another text."""
    position = 0
    for _ in range(num_marks):
        found = _MARKS.match(line, position)
        if found is None:
            return f"{line[:position]} {line[position:].strip()} x"
        position = found.end()
    rest = line[position:]
    num_blanks = len(rest) - len(rest.lstrip(" "))
    return line[:position] + " " * (num_blanks if 1 <= num_blanks <= 4 else 1) + "x"


def _is_blank(line: str) -> bool:
    return not line.strip(" \t>")


def _has_too_many_marks(line: str) -> bool:
    position = 0
    for _ in range(_MAX_MARKS):
        found = _MARKS.match(line, position)
        if found is None:
            return False
        position = found.end()
    return True
