"""Markdown that comes line by line: which of its blocks are finished.

markdown-it-py decides. It is given the lines that are not finished yet, and whatever has another
block after it cannot change any more. Lines that decide nothing, inside a fence or a table, are
taken out again, so what is parsed stays short however long the answer is.

Only how the text is cut into lines counts, never in what pieces it came.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from swiftchat.chat.render.parse import Container, Kind, Leaf, parse_blocks

# More than this is never parsed at once; what is still unfinished then is cut there.
_MOST_CHARS = 16_384
_MOST_LINES = 300
_MOST_CELLS = 300  # of a table that are held back to find how wide its columns are
_LONGEST_LINE = 4096  # a longer one is shown as it stands
_MARKS = re.compile(r"[ \t]*(?:>|[-*+](?=[ \t])|\d{1,9}[.)](?=[ \t]))")
_MOST_MARKS = 30  # of quotes and lists in one line; more is no Markdown that anybody meant


@dataclass(frozen=True)
class Block:
    """A block without blocks in it, and the containers it stands in, the outermost first.

    The last `num_opened` of them begin with it. `content` is its text, for `fence` and `code` the
    code. `info` is a fence's language or a heading's level. `rows` are a table's cells, the head
    first. `gap` is None, or a blank line stands before it, with as many marks of quotes. `starts`
    and `ends` are False where another part of the same block came before or follows.
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


class _Line(NamedTuple):
    text: str
    number: int
    bars: int  # marks of quotes in the line before it


class BlockStream:
    """Takes text in any pieces; gives the blocks that are finished.

    A fence comes line by line, a long table by rows, an overlong line in parts.
    """

    def __init__(self) -> None:
        self._rest = ""  # the line that is not complete
        self._is_overlong = False
        self._number = 0  # of that line
        self._bars = 0
        self._lines: list[_Line] = []  # what is parsed
        self._num_done = 0  # leaves of `_lines` that were given already
        self._order: int | None = None  # the number of the first item of `_lines`
        self._last = -1  # the last line that was given; -1 before the first
        self._blanks: list[str] | None = None  # blank lines held back in an open fence
        self._table = _HeldTable()

    def push(self, text: str) -> Iterator[Block]:
        """Take in some text."""
        *lines, rest = text.split("\n")
        for line in lines:
            yield from self._grow(line)
            yield from self._end_line()
        yield from self._grow(rest)

    def finish(self) -> Iterator[Block]:
        """Give what is left: the text ends here."""
        if self._rest or self._is_overlong:
            yield from self._end_line()
        yield from self._cut()

    def tail(self, num_lines: int) -> list[str]:
        """The last lines of what was not given yet, the incomplete one included."""
        lines = self._table.lines[-num_lines:]
        if not lines:
            lines = [line.text for line in self._lines[-num_lines:] if line.number > self._last]
        return [*lines, self._rest]

    @property
    def is_in_fence(self) -> bool:
        return self._blanks is not None

    def _grow(self, text: str) -> Iterator[Block]:
        self._rest += text
        while len(self._rest) > _LONGEST_LINE:
            part, self._rest = self._rest[:_LONGEST_LINE], self._rest[_LONGEST_LINE:]
            yield from self._as_it_stands(part, ends=False)

    def _end_line(self) -> Iterator[Block]:
        line, self._rest = self._rest, ""
        if self._is_overlong or _is_deep(line):
            yield from self._as_it_stands(line, ends=True)
        else:
            self._lines.append(_Line(line, self._number, self._bars))
            yield from self._take(is_end=False)
        self._bars = line.count(">") if _is_blank(line) else 0
        self._number += 1
        if len(self._lines) > _MOST_LINES or sum(len(x.text) for x in self._lines) > _MOST_CHARS:
            yield from self._cut()

    def _as_it_stands(self, part: str, ends: bool) -> Iterator[Block]:
        """Give part of a line that is not parsed; in a fence it is code like the rest."""
        starts, self._is_overlong = not self._is_overlong, not ends
        if starts and not self.is_in_fence:
            yield from self._cut()
        gap = 0 if starts and self._last >= 0 and self._number > self._last + 1 else None
        self._last = self._number
        yield Block("plain", (), 0, part, gap=gap, starts=starts, ends=ends)

    def _cut(self) -> Iterator[Block]:
        """Give everything there is; what follows begins afresh."""
        yield from self._take(is_end=True)
        self._forget(len(self._lines))
        self._order = None

    def _take(self, is_end: bool) -> Iterator[Block]:
        leaves = parse_blocks([line.text for line in self._lines], self._order)
        blank_last = bool(self._lines) and _is_blank(self._lines[-1].text)
        while self._num_done < len(leaves):
            leaf = leaves[self._num_done]
            is_last = self._num_done + 1 == len(leaves)
            closed_by_blank = blank_last and leaf.end < len(self._lines) and leaf.kind != "code"
            is_over = is_end or not is_last or leaf.is_closed or closed_by_blank
            if not is_end and self._may_become_table(leaf):
                break
            if leaf.kind == "fence":
                yield from self._take_fence(leaf, is_over)
            elif leaf.kind == "table":
                yield from self._take_table(leaf, is_over)
            elif is_over:
                yield self._block(leaf, leaf.content)
            if not is_over:
                break
            self._last = max(self._last, self._table.last, self._lines[leaf.end - 1].number)
            self._num_done += 1
        self._drop_done(leaves)

    def _take_fence(self, leaf: Leaf, is_over: bool) -> Iterator[Block]:
        """Give the lines of a fence; blank ones at its end only if others follow."""
        if self._blanks is None:
            yield self._block(leaf, "", ends=False)
        blanks = self._blanks or []
        for line in leaf.content.split("\n")[:-1]:
            blanks.append(line)
            if line.strip():
                yield self._block(leaf, "\n".join(blanks), starts=False, ends=False)
                blanks = []
        self._blanks = None if is_over else blanks
        if is_over:
            yield self._block(leaf, "", starts=False)
        else:
            self._last = self._lines[leaf.end - 1].number
            del self._lines[leaf.start + 1 : leaf.end]
            # With no bars in it, the line is no table's head whatever code comes.
            opening = self._lines[leaf.start]
            self._lines[leaf.start] = opening._replace(text=opening.text.replace("|", " "))

    def _may_become_table(self, leaf: Leaf) -> bool:
        """Whether it is a line that the next one could make a table's head, whatever else it is."""
        is_last_line = leaf.end == len(self._lines) and leaf.end - leaf.start == 1
        return is_last_line and "|" in self._lines[-1].text and leaf.kind in ("heading", "fence")

    def _take_table(self, leaf: Leaf, is_over: bool) -> Iterator[Block]:
        """Hold an unfinished table's rows back, up to a number of them."""
        table = self._table
        table.add(leaf.rows, self._lines[leaf.start : leaf.end])
        if is_over or len(table.rows) * len(table.head) > _MOST_CELLS:
            leaf.rows = [table.head, *table.rows]
            yield self._block(leaf, "", starts=not table.has_part, ends=is_over)
            self._last = table.last
            table.rows, table.lines, table.has_part = [], [], True
        if is_over:
            self._table = _HeldTable(last=table.last)
        else:
            del self._lines[leaf.start + 2 : leaf.end]

    def _block(self, leaf: Leaf, content: str, starts: bool = True, ends: bool = True) -> Block:
        first = self._lines[leaf.first_line]
        gap = None
        if starts and self._last >= 0 and (first.number > self._last + 1 or leaf.kind == "heading"):
            gap = first.bars
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

    def _drop_done(self, leaves: list[Leaf]) -> None:
        """Forget the lines that say nothing about those to come."""
        if self._num_done < len(leaves):
            leaf = leaves[self._num_done]
            first = self._lines[leaf.first_line].text.expandtabs(4)
            # So far to the right it is code, unless what came before made it something else.
            is_indented = first.startswith(" " * 4)
            if self._num_done and leaf.stands_alone and not is_indented:
                item = next((c for c in leaf.path if c.kind == "item"), None)
                self._order = item.order if item and not item.is_first else None
                self._forget(leaf.first_line)
        elif not leaves or not leaves[-1].path:
            self._forget(len(self._lines))
            self._order = None

    def _forget(self, num_lines: int) -> None:
        del self._lines[:num_lines]
        self._num_done = 0


@dataclass
class _HeldTable:
    """What is held back of an unfinished table: its cells, and its lines to be shown as they are.

    `last` is the number of its last line, `has_part` that rows of it were given.
    """

    head: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    last: int = -1
    has_part: bool = False

    def add(self, rows: list[tuple[str, ...]], lines: list[_Line]) -> None:
        """Add what was parsed, the head and the line below it included each time."""
        self.head = rows[0]
        self.rows += rows[1:]
        new = lines[2:] if self.lines or self.has_part else lines
        self.lines += [line.text for line in new]
        self.last = max(self.last, lines[-1].number)


def _is_blank(line: str) -> bool:
    return not line.strip(" \t>")


def _is_deep(line: str) -> bool:
    place = 0
    for _ in range(_MOST_MARKS):
        found = _MARKS.match(line, place)
        if found is None:
            return False
        place = found.end()
    return True
