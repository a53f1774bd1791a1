"""Parse Markdown into a flat list of blocks with their enclosing quotes and lists."""

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from swiftchat.chat.render.emphasis import add_wide_emphasis
from swiftchat.chat.render.extensions import add_extensions
from swiftchat.chat.render.half_open import add_half_open
from swiftchat.chat.render.math import add_math

Kind = Literal["paragraph", "heading", "code", "fence", "rule", "table", "math", "plain"]


_CHECKBOX = re.compile(r"\[([ xX])\](?:\s+|$)")


class Container(NamedTuple):
    """A block quote, or a list item with its bullet or number."""

    kind: Literal["quote", "item"]
    marker: str
    start: int  # index of its first line
    order: int = 0  # of an item in a numbered list
    is_first: bool = True  # item of its list


@dataclass
class Leaf:
    """A block without inner blocks; `start` and `end` delimit its lines in the parsed text.

    The innermost `num_opened` containers of `path` begin with it.
    """

    kind: Kind
    start: int
    end: int
    path: tuple[Container, ...]
    num_opened: int
    content: str = ""
    info: str = ""
    rows: list[tuple[str, ...]] = field(default_factory=list)
    aligns: tuple[str, ...] = ()

    @property
    def is_closed(self) -> bool:
        """Return whether no later line can continue the block."""
        if self.kind == "fence":  # opening line, code, closing line
            return self.end - self.start > self.content.count("\n") + 1
        return self.kind in ("heading", "rule")

    @property
    def first_line(self) -> int:
        """Return the first line of the block and of the containers that begin with it."""
        return self.path[-self.num_opened].start if self.num_opened else self.start

    @property
    def stands_alone(self) -> bool:
        """Return whether it parses the same without the lines before: no list item continues."""
        earlier = self.path[: len(self.path) - self.num_opened]
        return all(container.kind == "quote" for container in earlier)


@cache
def parser() -> MarkdownIt:
    """Return a CommonMark parser with tables, strikethrough, formulas, footnotes and `<br>`.

    It knows no other HTML and no references.
    """
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 600})
    parser.enable(["table", "strikethrough"])
    parser.disable(["reference", "html_block", "html_inline"])
    parser.core.ruler.enableOnly(["normalize", "block"])
    add_math(parser)
    add_wide_emphasis(parser)
    add_extensions(parser)
    add_half_open(parser)
    return parser


def parse_blocks(lines: list[str], order: int | None = None) -> list[Leaf]:
    """Parse lines into leaf blocks.

    If the lines begin with a list, its first item gets the number `order`.
    """
    if not lines:
        return []
    # End with a newline: the code of an open fence includes it.
    return _Leaves(order).read(parser().parse("\n".join(lines) + "\n"))


class _Leaves:
    """Flattens the tokens of markdown-it."""

    def __init__(self, order: int | None) -> None:
        self._next_order = order  # of the first item
        self._path: list[Container] = []
        self._num_empty = 0  # innermost containers without a block so far
        self._orders: list[int | None] = []  # next number of each open list; None for bullets
        self._counts: list[int] = []  # items so far of each open list
        self.found: list[Leaf] = []

    def read(self, tokens: list[Token]) -> list[Leaf]:
        for i, token in enumerate(tokens):
            match token.type:
                case "blockquote_open":
                    self._open(Container("quote", "", _start(token)))
                case "list_item_open":
                    self._open_item(token)
                case "bullet_list_open" | "ordered_list_open":
                    self._open_list(token)
                case "bullet_list_close" | "ordered_list_close":
                    self._orders.pop()
                    self._counts.pop()
                case "blockquote_close" | "list_item_close":
                    if self._num_empty:  # show the bullet of an empty item
                        start = self._path[-1].start
                        self._add("paragraph", start, start + 1)
                    self._path.pop()
                case "paragraph_open":
                    self._add_paragraph(token, tokens[i + 1].content)
                case "heading_open":
                    content = tokens[i + 1].content
                    self._add("heading", *_lines_of(token), content, token.tag[1:])
                case "fence" | "code_block" | "math_block" | "hr":
                    self._add(_KINDS[token.type], *_lines_of(token), token.content, token.info)
                case "table_open":
                    self._add("table", *_lines_of(token))
                case "tr_open":
                    self.found[-1].rows.append(())
                case "th_open" | "td_open":
                    self._add_cell(token, tokens[i + 1].content)
        return self.found

    def _open(self, container: Container) -> None:
        self._path.append(container)
        self._num_empty += 1

    def _open_list(self, token: Token) -> None:
        start = int(token.attrs.get("start", 1)) if token.type[0] == "o" else None
        if start is not None and self._next_order is not None:
            start = self._next_order
        is_continued = self._next_order is not None
        self._orders.append(start)
        self._counts.append(1 if is_continued else 0)
        self._next_order = None

    def _open_item(self, token: Token) -> None:
        order = self._orders[-1]
        marker = "•" if order is None else f"{order}."
        is_first = self._counts[-1] == 0
        self._open(Container("item", marker, _start(token), order or 0, is_first))
        self._counts[-1] += 1
        if order is not None:
            self._orders[-1] = order + 1

    def _add(self, kind: Kind, start: int, end: int, content: str = "", info: str = "") -> None:
        leaf = Leaf(kind, start, end, tuple(self._path), self._num_empty, content, info)
        self._num_empty = 0
        self.found.append(leaf)

    def _add_paragraph(self, token: Token, content: str) -> None:
        """Add a paragraph; a checkbox at the beginning of an item becomes part of its marker."""
        box = _CHECKBOX.match(content)
        if box and self._num_empty and self._path[-1].kind == "item":
            item = self._path[-1]
            mark = "☐" if box[1] == " " else "☑"
            marker = mark if item.marker == "•" else f"{item.marker} {mark}"
            self._path[-1] = item._replace(marker=marker)
            content = content[box.end() :]
        self._add("paragraph", *_lines_of(token), content)

    def _add_cell(self, token: Token, content: str) -> None:
        table = self.found[-1]
        table.rows[-1] = (*table.rows[-1], content)
        if token.type == "th_open":
            table.aligns += (str(token.attrs.get("style", "")).removeprefix("text-align:"),)


_KINDS: dict[str, Kind] = {
    "fence": "fence",
    "code_block": "code",
    "math_block": "math",
    "hr": "rule",
}


def _start(token: Token) -> int:
    return _lines_of(token)[0]


def _lines_of(token: Token) -> tuple[int, int]:
    assert token.map is not None
    return token.map[0], token.map[1]


class CodeBlock(NamedTuple):
    """The language and the code of a fenced block."""

    language: str
    code: str


def code_blocks(text: str) -> list[CodeBlock]:
    """Return the fenced blocks of a Markdown text in order; answers number them from 1."""
    lines = text.removesuffix("\n").split("\n")
    fences = [block for block in parse_blocks(lines) if block.kind == "fence"]
    return [CodeBlock(block.info.strip().split(" ")[0], block.content) for block in fences]
