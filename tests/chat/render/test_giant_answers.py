"""A giant code fence, a table of many rows, and a line of a megabyte: no frame takes long.

The limit of a frame is checked without a clock: its calls must be no more than a slow machine
executes in 100 ms, and the characters that it parses and writes must not grow with the answer.
"""

import sys
from collections import Counter
from collections.abc import Callable

import pytest

from swiftchat.chat.render import blocks, parse
from swiftchat.chat.render.markdown_view import MarkdownView
from swiftchat.chat.render.style import Style
from tests.support.terminal import Terminal

GIANTS: dict[str, Callable[[int], str]] = {
    "fence": lambda size: "```\n" + "some code, x = 1\n" * (size // 17),
    "table": lambda size: (
        "|a|b|\n|-|-|\n" + "".join(f"|one {i}|two and some words|\n" for i in range(size // 28))
    ),
    "line": lambda size: "word " * (size // 5),
    "line without spaces": lambda size: "x" * size,
    "line of styles": lambda size: "**bold** `code` [a](http://b) and *more " * (size // 40),
    "quote marks": lambda size: ("> " * 2000 + "deep\n") * (size // 4005 + 1),
}

MAX_CALLS, MAX_WRITTEN, MAX_PARSED = 200_000, 10_000, 20_000


class Frames:
    """A view that gets an answer in pieces; records the most work of a frame.

    Work is the number of characters parsed and written, and if it `counts_calls`, of calls.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, counts_calls: bool = False) -> None:
        self._now_s = 0.0
        self._counts_calls = counts_calls
        self._work: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        parse_blocks = parse.parse_blocks

        def counted(lines: list[str], order: int | None = None) -> list[parse.Leaf]:
            self._work["parsed"] += sum(map(len, lines))
            return parse_blocks(lines, order)

        monkeypatch.setattr(blocks, "parse_blocks", counted)
        style = Style("markdown", is_colored=True, is_live=True)
        self._view = MarkdownView(style, None, "m", self._write, lambda: (80, 24), self._clock)

    def _write(self, text: str) -> None:
        self._work["written"] += len(text)

    def _clock(self) -> float:
        return self._now_s

    def _count_call(self, frame: object, event: str, argument: object) -> None:
        self._work["calls"] += event in ("call", "c_call")

    def show(self, text: str) -> "Frames":
        """Show an answer of 8000 characters a second in pieces of 40, ten between two drawings."""
        for start in range(0, len(text), 40):
            self._now_s += 0.005
            self._work.clear()
            sys.setprofile(self._count_call if self._counts_calls else None)
            self._view.push(text[start : start + 40])
            sys.setprofile(None)
            self.most |= self._work
        self._view.close()
        return self


@pytest.mark.fault(39)
@pytest.mark.parametrize("name", GIANTS)
def test_a_frame_does_not_grow_with_the_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    giant = GIANTS[name]
    with monkeypatch.context() as patch:
        short = Frames(patch, counts_calls=True).show(giant(10_000)).most
    long = Frames(monkeypatch).show(giant(40_000)).most
    assert short["calls"] < MAX_CALLS
    assert long["written"] < MAX_WRITTEN and long["parsed"] < MAX_PARSED
    assert long["written"] <= 1.1 * short["written"] + 100
    assert long["parsed"] <= 1.1 * short["parsed"] + 100


@pytest.mark.fault(39)
def test_ctrl_c_stops_a_giant_answer(chat: Callable[..., Terminal]) -> None:
    # A fast machine has shown the whole answer before Ctrl-C, but `end_delay_s` keeps it running.
    terminal = chat({"text": GIANTS["table"](30_000), "end_delay_s": 600})
    terminal.type("go\r")
    terminal.process.expect("one.*two.*one.*two", timeout=60)
    terminal.type_now("\x03")
    # It takes 0.2 s, or longer on a busy machine, but less than the answer would.
    terminal.process.expect("stopped", timeout=60)
    terminal.type_now("\x04")
    assert terminal.wait_end() == 0
