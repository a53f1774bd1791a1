"""Streaming Markdown: the screen does not depend on the chunking and repeats no line."""

import os
import re
import signal
from collections.abc import Callable, Iterable
from typing import Any

import pyte
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from swiftchat.chat.render import blocks, parse
from swiftchat.chat.render.blocks import Block, BlockStream
from swiftchat.chat.render.markdown_view import MarkdownView
from swiftchat.chat.render.parse import code_blocks
from swiftchat.chat.render.rows import MarkdownRows
from swiftchat.chat.render.style import Style
from swiftchat.chat.terminal.sanitize import sanitize

SHOWCASE = r"""# Title
A paragraph with **bold**, `code` and a [link](https://a.b/c_d).
Its second line.

1. first
   ```py
   x = "你好"

   y = 2
   ```
   after the code
1. second
   - nested 👋

   loose
> quote
>
> - item in it

| Name | Value |
|:-----|------:|
| one  | `1`   |
| two<br>lines | 22 |

$$
a_1
+ b_1
$$
## End
```
no end

"""
PIECES = [
    "word ",
    "long words in a line of text ",
    "你好，世界",
    "👋",
    "*",
    "**",
    "`",
    "```",
    "```py",
    "~~~",
    "# ",
    "- ",
    "1. ",
    "7) ",
    "> ",
    ">",
    "\n",
    "\n",
    "\n\n",
    "    ",
    "  ",
    "\t",
    "|",
    "| a | b |\n",
    "|---|:-:|\n",
    "---\n",
    "===\n",
    "$$",
    "$x$",
    "\\[",
    "\\]",
    "[a](b)",
    "[a]: b\n",
    "&lt;",
    "<b>",
    "```|x\n",
    "# a | b\n",
    "x = 1\n",
    '"""',
    "\x1b[2J",
    "\r",
    "\u202e",
    "e\u0301",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


class Screen:
    """An emulated terminal with a MarkdownView; every piece triggers a drawing."""

    def __init__(self, columns: int = 80, rows: int = 24, **style: Any) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self.screen.set_mode(pyte.modes.LNM)  # as a tty driver does
        self.stream = pyte.Stream(self.screen)
        self.written = ""
        self.size = (columns, rows)
        self.now_s = 0.0
        settings = {"mode": "markdown", "is_colored": True, "is_live": True, **style}
        self.view = MarkdownView(
            Style(**settings),
            None,
            "model",
            self._write,
            lambda: self.size,
            self._clock,
        )

    def _write(self, text: str) -> None:
        self.written += text
        self.stream.feed(text)

    def _clock(self) -> float:
        self.now_s += 1
        return self.now_s

    def show(self, *pieces: str) -> list[str]:
        for piece in pieces:
            self.view.push(piece)
        self.view.close()
        return self.lines()

    def lines(self) -> list[str]:
        """Return the lines of scrollback and screen up to the cursor."""
        columns = range(self.screen.columns)
        above = ["".join(line[i].data for i in columns) for line in self.screen.history.top]
        on_screen = self.screen.display[: self.screen.cursor.y + 1]
        return [line.rstrip() for line in [*above, *on_screen]]


def split_at(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from([(20, 10), (60, 8)]))
def test_any_chunking_gives_the_same_screen_and_scrollback(
    text: str, places: list[int], size: tuple[int, int]
) -> None:
    whole = Screen(*size, is_live=False).show(text)
    assert Screen(*size).show(*split_at(text, places)) == whole
    assert Screen(*size).show(*text[-60:]) == Screen(*size, is_live=False).show(text[-60:])


def test_character_by_character_at_several_sizes() -> None:
    for size in ((80, 24), (20, 10), (200, 60), (400, 20), (1, 1)):
        whole = Screen(*size, is_live=False).show(SHOWCASE)
        assert Screen(*size).show(*SHOWCASE) == whole
    assert whole  # at 1×1 the output only has to end


JoinedBlock = tuple[str, list[str], str, tuple[tuple[str, ...], ...]]


def joined(blocks: Iterable[Block]) -> list[JoinedBlock]:
    """Join the parts of fences and tables that a stream yielded."""
    found: list[JoinedBlock] = []
    for block in blocks:
        path = [container.kind + container.marker for container in block.path]
        content = f"{block.content}\n" if block.kind == "fence" and block.content else block.content
        if block.starts:
            found.append((block.kind, path, content, block.rows))
        else:
            kind, path, before, rows = found[-1]
            found[-1] = (kind, path, before + content, (*rows, *block.rows[1:]))
    return [(kind, path, content.rstrip(), rows) for kind, path, content, rows in found]


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_streamed_blocks_equal_those_of_the_whole_text(text: str) -> None:
    text = sanitize(text)
    stream = BlockStream()
    streamed = [*stream.push(text), *stream.finish()]
    whole = [
        (leaf.kind, [c.kind + c.marker for c in leaf.path], leaf.content.rstrip(), tuple(leaf.rows))
        for leaf in parse.parse_blocks(text.split("\n"))
    ]
    assert joined(streamed) == whole


@settings(max_examples=50, deadline=None)
@example("```你好，世界你好，世界", 20)
@given(TEXTS, st.integers(20, 400))
def test_no_row_is_wider_than_the_screen(text: str, columns: int) -> None:
    rows, stream = MarkdownRows(Style("markdown")), BlockStream()
    for block in [*stream.push(sanitize(text)), *stream.finish()]:
        assert all(
            row.cell_len <= columns and "\n" not in row.plain for row in rows.render(block, columns)
        )


def shown(text: str, columns: int = 60, **style: Any) -> str:
    return "\n".join(Screen(columns, 24, **style).show(text)).rstrip("\n")


def test_showcase_screen() -> None:
    assert (
        shown(SHOWCASE)
        == r"""Title
A paragraph with bold, code and a link (https://a.b/c_d).
Its second line.

1. first
   [1] py ──────────────────────────────────────────────────
   x = "你好"

   y = 2
   ─────────────────────────────────────────────────────────
   after the code
2. second
   • nested 👋

   loose
▌ quote
▌
▌ • item in it

Name  │ Value
──────┼──────
one   │     1
two   │    22
lines │

a₁
+ b₁

End
[2] ────────────────────────────────────────────────────────
no end
────────────────────────────────────────────────────────────"""
    )


def test_accessible_output_keeps_marks_and_redraws_nothing() -> None:
    screen = Screen(60, 24, mode="accessible", is_colored=False, is_live=False)
    lines = screen.show(*SHOWCASE)
    assert "\x1b" not in screen.written and "\r" not in screen.written
    assert lines[:2] == ["model:", "# Title"]
    assert lines[5:7] == ["1. first", "   code 1, py:"] and "   end of code" in lines
    assert "- Name: two lines" in lines and "> - item in it" in lines


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        (r"\(a_1 * b_2 * c\) and $x_i*y_i*z$", "a₁ * b₂ * c and xᵢ*yᵢ*z"),
        ("\\[\nx\n- y\n\\]", "x\n- y"),
        (r"$\unknown{a_1 * b}$ and $c*d$", r"$\unknown{a_1 * b}$ and c*d"),
        ("costs $5 and *not* $6", "costs $5 and not $6"),
        ("<b>x</b> &amp; y", "<b>x</b> & y"),
        ("one<br>two<br/>\nthree", "one\ntwo\nthree"),
        ("- [ ] to do\n- [x] *done*\n1. [X] third", "☐ to do\n☑ done\n1. ☑ third"),
        ("- [x](http://y)\n- [] z", "• x (http://y)\n• [] z"),
        (
            "one[^1] two[^note]\n\n[^1]: *First*.\n[^note]: N",
            "one¹ two[note]\n\n¹ First.\n[note] N",
        ),
        ("a &#8238; b &#27; c", "a � b � c"),
        ("[1]: https://a.b\n\nsee [x][1]", "[1]: https://a.b\n\nsee [x][1]"),
        ("<https://a.b/c>", "https://a.b/c"),
        ("![alt](p.png)", "[image: alt] (p.png)"),
        ("[red]x[/red] [link=a]b[/link] :smile:", "[red]x[/red] [link=a]b[/link] :smile:"),
        ("1. a\n1. b\n\n1. c", "1. a\n2. b\n\n3. c"),
        ("-\n- b", "•\n• b"),
        ("```\nx\n\n\n```\ny", f"[1] {'─' * 56}\nx\n{'─' * 60}\ny"),
        ("> " * 40 + "deep", "> " * 30 + "\n" + "> " * 10 + "deep"),
    ],
)
def test_rendering(text: str, rendered: str) -> None:
    assert shown(text) == "\n".join(line.rstrip() for line in rendered.split("\n"))


def test_a_table_that_does_not_fit_becomes_a_list() -> None:
    table = "| a | b | c |\n|---|---|---|\n| one | two | three |\n"
    assert shown(table, columns=16) == "- a: one\n  b: two\n  c: three"
    assert shown(table.replace("three", "three words"), columns=10) == (
        "- a: one\n  b: two\n  c: three\n  words"
    )


@pytest.mark.parametrize("columns", range(21, 33))
def test_a_table_takes_at_most_the_width(columns: int) -> None:
    cells = "words and more words"
    table = f"| {cells} | {cells} | a |\n|---|---|---|\n| {cells} | {cells} | b |\n"
    screen = Screen()
    screen.size = (columns, 24)  # a wider terminal would show what is too long
    rows = screen.show(table)
    assert max(map(len, rows)) == columns and any("┼" in row for row in rows)


CONTROLS = "".join(map(chr, [*range(9), *range(11, 32), *range(127, 160), 0x202E, 0x202A, 0x2028]))
OUR_ESCAPES = re.compile(r"\x1b\[(?:[0-9;]*m|K|A|\?7[hl])")


@pytest.mark.fault(3)
def test_control_characters_are_sanitized_at_every_split_point() -> None:
    text = f"a\x1b]52;c;eA==\x07b `{CONTROLS}` c\n\n```\n{CONTROLS}\n```\n| {CONTROLS} |\n|--|\n"
    for place in range(len(text) + 1):
        screen, written = Screen(), list[str]()
        screen.view._region._write = written.append
        for piece in (text[:place], text[place:]):
            screen.view.push(piece)
        screen.view.close()
        rest = OUR_ESCAPES.sub("", "".join(written)).replace("\n", "").replace("\r", "")
        assert not set(CONTROLS) & set(rest)
    bare = Screen(mode="accessible", is_colored=False, is_live=False)
    bare.show(*text)
    assert not set(CONTROLS) & set(bare.written)


def test_uncolored_output_has_styles_but_no_colors() -> None:
    screen = Screen(is_colored=False)
    screen.show(SHOWCASE)
    codes = {
        code
        for found in re.findall(r"\x1b\[([0-9;]*)m", screen.written)
        for code in found.split(";")
    }
    assert "1" in codes and not codes & {str(n) for n in [*range(30, 50), *range(90, 108)]}


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("[a *b*](http://x.y/z)", "<http://x.y/z a ><http://x.y/z b>"),
        ("<http://x.y>", "<http://x.y http://x.y>"),
        # A label that looks like another address does not hide where the link leads.
        ("[bank.com](http://evil.y)", "<http://evil.y bank.com> (http://evil.y)"),
        ("[a](file:///etc)", "[a](file:///etc)"),
        ("[a](/relative)", "a (/relative)"),
        ("[a](<http://x.y/\x1b]8;;&#7;>)", "<http://x.y/%E2%90%9B%5D8;;&#7; a>"),
    ],
)
def test_links_of_terminals_that_take_them(text: str, row: str) -> None:
    screen = Screen(has_links=True)
    screen.show(text)
    linked = re.sub(r"\x1b\]8;;(\S+?)\x1b\\(.*?)\x1b\]8;;\x1b\\", r"<\1 \2>", screen.written)
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", linked).strip("\r\n")
    assert plain == row


def test_headings_are_told_apart_by_level() -> None:
    for colored in (True, False):
        screen = Screen(is_colored=colored)
        screen.show(*(f"{'#' * level} T\n" for level in range(1, 6)))
        styles = re.findall(r"\x1b\[([\d;]+)mT", screen.written)
        assert len(set(styles)) == 5 and all(("35" in s.split(";")) == colored for s in styles)


def test_the_tail_is_drawn_at_most_twenty_times_a_second() -> None:
    screen = Screen()
    times: list[float] = []
    screen.view._clock = lambda: screen.now_s
    screen.view._region._write = lambda text: times.append(screen.now_s)
    for _ in range(300):
        screen.now_s += 0.01
        screen.view.push("word ")
    assert 50 <= len(times) <= 61


def test_an_incomplete_line_of_code_is_indented_like_the_complete_one() -> None:
    screen = Screen()
    screen.view.push("1. item\n   ```\n   one\n   tw")
    assert screen.lines()[-3:-1] == ["   one", "   tw"]
    screen.view.push("o\n")
    assert screen.lines()[-3:-1] == ["   one", "   two"]


@pytest.mark.parametrize("columns", [30, 59, 61, 120])
def test_a_resize_while_answering_repeats_no_line(columns: int) -> None:
    screen = Screen(60, 24)
    words = [f"word{i} " for i in range(60)]
    for i, word in enumerate(["# Head\n\ndone before\n\n", *words]):
        if i == 30:
            screen.screen.resize(24, columns)
            screen.size = (columns, 24)
        screen.view.push(word)
    screen.view.close()
    text = " ".join(screen.lines()).split()
    assert text == ["Head", "done", "before", *(word.strip() for word in words)]


def test_ctrl_c_during_a_drawing_loses_no_line() -> None:
    screen = Screen()

    def interrupted(text: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        screen._write(text)

    screen.view.push("one\n\n")
    screen.view._region._write = interrupted
    with pytest.raises(KeyboardInterrupt):
        screen.view.push("two\n\nthree")
    screen.view._region._write = screen._write
    screen.view.close("stopped")
    assert screen.lines() == ["one", "", "two", "", "three", "stopped", ""]


class ParserCalls:
    """Records the number of characters of each call of the parser."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lengths: list[int] = []
        original = parse.parse_blocks

        def counted(lines: list[str], order: int | None = None) -> list[parse.Leaf]:
            self.lengths.append(sum(map(len, lines)))
            return original(lines, order)

        monkeypatch.setattr(blocks, "parse_blocks", counted)


HOSTILE: dict[str, Callable[[int], str]] = {
    "fence": lambda n: "```py\n" + "x = 1\n" * n,
    "fence in an item": lambda n: "- a\n  ```\n" + "  x\n" * n,
    "table": lambda n: "|a|b|\n|-|-|\n" + "|c|d|\n" * n,
    "list": lambda n: "- an item\n" * n,
    "quote": lambda n: "> a line\n>\n" * n,
    "line": lambda n: "words " * n,
    "prose": lambda n: "A paragraph.\n\n" * n,
}


@pytest.mark.fault(39)
@pytest.mark.parametrize("name", HOSTILE)
def test_the_cost_of_a_line_does_not_grow_with_the_text(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = ParserCalls(monkeypatch)
    stream = BlockStream()
    num_blocks = len(list(stream.push(HOSTILE[name](800)))) + len(list(stream.finish()))
    assert max(calls.lengths) < (2200 if name == "line" else 100)
    assert len(calls.lengths) <= 2 * 800 + 10
    assert num_blocks > (1 if name == "line" else 5)


@pytest.mark.fault(39)
def test_long_unfinished_blocks_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = ParserCalls(monkeypatch)
    stream = BlockStream()
    text = "a line of a paragraph\n" * 400 + "- x\n" + "  - y\n" * 400 + "x" * 20_000
    blocks = [*stream.push(text), *stream.finish()]
    assert max(calls.lengths) <= 16_384 + 4096
    assert sum(block.content.count("paragraph") for block in blocks) == 400
    assert sum(block.content.partition("\n")[0] == "y" for block in blocks) == 400
    assert sum(block.content.count("x") for block in blocks) == 20_001


def test_code_blocks_are_numbered_as_copy_expects() -> None:
    blocks = code_blocks(SHOWCASE + "```\n> ~~~ sh\n> ls\n> ~~~\n")
    assert [(block.language, block.code) for block in blocks] == [
        ("py", 'x = "你好"\n\ny = 2\n'),
        ("", "no end\n\n"),
        ("sh", "ls\n"),
    ]
    assert cell_len(blocks[0].code.split("\n")[0]) == 10
