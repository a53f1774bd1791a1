"""Every frame of answers that stream at many speeds, in windows of several sizes.

The time is simulated. The answers are such as models write; a token has about four characters.
"""

import re
from pathlib import Path
from typing import Any

import pyte
import pytest
from markdown_it.token import Token

from swiftchat.chat.render import blocks, parse
from swiftchat.chat.render.markdown_view import MarkdownView
from swiftchat.chat.render.style import Style
from tests.chat.render.test_live_region import Window

ANSWERS = {
    file.stem: file.read_text() for file in sorted((Path(__file__).parent / "answers").glob("*.md"))
}
SIZES = [(20, 5), (80, 24), (140, 50)]
SPEEDS = [5, 20, 100, 500]  # tokens a second
# Marks that no row may show: the answers have none of them outside code.
RAW = re.compile(r"\*\*|~~|(?<!\w)\*\w|\w\*(?!\w)|`|\]\(|^#{1,6} |\[[ x]\] |\\\(|\$\w|\|[-:]|<br")


class Player:
    """Shows an answer at a speed and keeps what the window shows after each drawing."""

    def __init__(self, size: tuple[int, int], tokens_per_s: float = 100, live: bool = True) -> None:
        self.window = Window(*size, history=100_000)
        self.window.set_mode(pyte.modes.LNM)
        self._stream = pyte.Stream(self.window)
        self.frames: list[list[str]] = []
        self._now_s = 0.0
        self._tokens_per_s = tokens_per_s
        self._view = MarkdownView(
            Style("markdown", is_colored=True, is_live=live),
            None,
            "model",
            self._write,
            lambda: (self.window.columns, self.window.lines),
            lambda: self._now_s,
        )

    def _write(self, text: str) -> None:
        self._stream.feed(text)
        self.frames.append(self.window.lines_so_far())

    def push(self, text: str) -> None:
        for token in re.findall(r"\s?\S{1,4}|\s", text):
            self._now_s += 1 / self._tokens_per_s
            self._view.push(token)

    def show(self, text: str) -> list[str]:
        self.push(text)
        self._view.close()
        return self.window.lines_so_far()


def complete(text: str, size: tuple[int, int]) -> list[str]:
    """Return the rows of an answer that arrives at once."""
    player = Player(size, live=False)
    player._view.push(text)
    player._view.close()
    return player.window.lines_so_far()


CASES = [
    (name, size, SPEEDS[(i + j) % len(SPEEDS)])
    for i, name in enumerate(ANSWERS)
    for j, size in enumerate(SIZES)
]


@pytest.mark.parametrize(("name", "size", "speed"), CASES)
def test_each_frame(name: str, size: tuple[int, int], speed: float) -> None:
    player = Player(size, speed)
    text = ANSWERS[name]
    assert player.show(text) == complete(text, size)
    in_code = set("".join(re.findall(r"```.*?```", text, re.DOTALL)).split("\n"))
    code = {row.strip() for row in in_code}
    before: list[str] = []
    for frame in player.frames:
        for row in frame:
            is_code = any(row.strip() and row.strip() in line for line in code)
            assert is_code or not RAW.search(row.strip("─ ")), row
        # A row with text stays one, but for the last of the old frame. In a low window the end of
        # a block that does not fit is drawn in the place of its beginning.
        for old, new in zip(before[:-2], frame, strict=False):
            assert not old or new or size[1] < 10, (before, frame)
        before = frame


@pytest.mark.parametrize("name", [name for name in ANSWERS if name != "tables"])
def test_rows_above_the_last_two_stay(name: str) -> None:
    player = Player((80, 24), 100)
    player.show(ANSWERS[name])
    for before, frame in zip(player.frames, player.frames[1:], strict=False):
        stable = before[:-3]
        assert frame[: len(stable)] == stable


@pytest.mark.parametrize("name", ANSWERS)
def test_resizes_between_frames_lose_and_repeat_nothing(name: str) -> None:
    sizes = [(100, 40), (100, 12), (100, 50), (100, 9), (100, 24)]
    player = Player(sizes[0], 50)
    text = ANSWERS[name]
    for i, start in enumerate(range(0, len(text), 97)):
        player.window.resize(*reversed(sizes[i % len(sizes)]))
        player.push(text[start : start + 97])
    words = "".join(player.show("")).split()
    wanted = "".join(complete(text, (100, 24))).split()
    assert re.sub("[─┼]", "", "".join(words)) == re.sub("[─┼]", "", "".join(wanted))


def test_the_head_of_a_table_stays_in_the_window_while_the_table_grows() -> None:
    player = Player((80, 10))
    rows = [f"| row {i} | {'x' * (i % 7)} |\n" for i in range(60)]
    player.show("| Name | Value |\n|---|---|\n" + "".join(rows))
    growing = [frame[-9:] for frame in player.frames if len(frame) >= 9][:-1]
    assert growing and all(any("Name" in row for row in window) for window in growing)
    lines = player.window.lines_so_far()
    assert [line for line in lines if "Name" in line] == [lines[0]] and "row 59" in lines[-2]
    assert [line.partition(" │")[0].strip() for line in lines[2:-1]] == [
        f"row {i}" for i in range(60)
    ]


@pytest.mark.parametrize(
    ("growing", "shown"),
    [
        ("**bold te", "bold te"),
        ("**bold*", "bold"),
        ("a *b **c", "a b c"),
        ("`code", "code"),
        ("see `", "see"),
        ("[text](http://a.b/c", "text (http://a.b/c)"),
        ("[text][", "[text]"),
        ("~~old", "old"),
        (r"\(x^2 + y", "x² + y"),
        (r"so $\alpha + \be", "so α +"),
        ("snake_case and 2 * 3 a*b", "snake_case and 2 * 3 a*b"),
        ("含**「重点", "含「重点"),
        ("# Hea", "Hea"),
        ("##", ""),
        ("- ", ""),
        ("- item\n- **it", "• item\n• it"),
        ("- item\n2", "• item"),
        ("1. one\n   - [x", "1. one"),
        ("text\n--", "text"),
        ("text\n\n", "text\n"),
        ("> quote\n>\n", "▌ quote\n▌"),
        ("| Name | Val", "Name │ Val\n─────┼────"),
        ("| Name | Value |\n|--", "Name │ Value\n─────┼──────"),
        ("| a | b |\n|---|---|\n| **x", "a │ b\n──┼──\nx │"),
        ("- a\n\n  | a | b", "• a\n\n  a │ b\n  ──┼──"),
        ("$$\n\\frac{a}{b", "a/b"),
        ("```py\nx = [\n\n", f"[1] py {'─' * 53}\nx = [\n\n{'─' * 60}"),
        ("one<br", "one"),
    ],
)
def test_a_growing_end_is_shown_as_it_will_be(growing: str, shown: str) -> None:
    player = Player((60, 24))
    player.push(growing)
    player._now_s += 1
    player._view.push("\n" if not growing else "")
    player._view._draw()
    assert "\n".join(player.window.lines_so_far()).rstrip("\n") == shown.rstrip("\n")


def test_a_paragraph_of_any_length_wraps_between_words_with_its_styles() -> None:
    text = " ".join(f"word{i} **bold{i} text** `code{i}`" for i in range(400))
    assert len(text) > 12_000
    player = Player((80, 24), 5000)
    rows = player.show(text)
    assert rows == complete(text, (80, 24))
    words = re.sub(r"[*`]", "", text).split()
    assert " ".join(rows).split() == words
    assert all(len(row) > 60 for row in rows[:-2])
    assert not re.search(r"[*`]", "".join(map("".join, player.frames[-2])))


def work(text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of characters that are parsed and written for an answer."""
    amount = 0
    inline = parse.parser().inline
    parse_blocks, parse_inline = parse.parse_blocks, inline.parse

    def count(text: str) -> None:
        nonlocal amount
        amount += len(text)

    def counted_blocks(lines: list[str], order: int | None = None) -> list[parse.Leaf]:
        count("".join(lines))
        return parse_blocks(lines, order)

    def counted_inline(text: str, *rest: Any) -> list[Token]:
        count(text)
        return parse_inline(text, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(blocks, "parse_blocks", counted_blocks)
        patch.setattr(inline, "parse", counted_inline)
        player = Player((80, 24), 200)
        player._view._region._write = count
        player.show(text)
    return amount


def test_the_work_grows_with_the_answer_and_not_with_its_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "\n\n".join(ANSWERS.values()) + "\n\n"
    short, long = text * (15_000 // len(text)), text * (60_000 // len(text))
    ratio = work(long, monkeypatch) / work(short, monkeypatch)
    assert ratio < 1.05 * len(long) / len(short)
