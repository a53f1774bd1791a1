"""The rows that are redrawn while an answer streams."""

import pyte
import pytest
from rich.text import Text

from swiftchat.chat.render.live_region import LiveRegion


class Window(pyte.HistoryScreen):
    """A screen that keeps rows that leave a window that becomes lower, as terminals do."""

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        """Change the size; the cursor stays in its row."""
        lines, columns = lines or self.lines, columns or self.columns
        y, x = self.cursor.y, self.cursor.x
        for _ in range(max(0, y + 1 - lines)):
            self.history.top.append(self.buffer[0])
            self.buffer = type(self.buffer)(self.buffer.default_factory) | {
                row - 1: line for row, line in self.buffer.items() if row
            }
            y -= 1
        self.lines, self.columns = lines, columns
        self.set_margins()
        self.dirty.update(range(lines))
        self.cursor.y, self.cursor.x = y, min(x, columns - 1)

    def lines_so_far(self) -> list[str]:
        """Return the rows of the scrollback and of the window up to the cursor."""
        rows = [*self.history.top, *(self.buffer[y] for y in range(self.cursor.y + 1))]
        return ["".join(row[x].data for x in range(self.columns)).rstrip() for row in rows]


class Region:
    """A region in an emulated window."""

    def __init__(self, columns: int, lines: int) -> None:
        self.window = Window(columns, lines, history=1000)
        self.window.set_mode(pyte.modes.LNM)
        self._stream = pyte.Stream(self.window)
        self.written = ""
        self._region = LiveRegion(
            self._write,
            lambda: (self.window.columns, self.window.lines),
            rewraps=False,
            encode=lambda row: row.plain,
        )

    def _write(self, text: str) -> None:
        self.written = text
        self._stream.feed(text)

    def draw(self, permanent: str, tail: str, num_pinned: int = 0) -> list[str]:
        """Draw rows, given in words; return all rows so far."""
        self.written = ""
        rows = [[Text(word) for word in text.split()] for text in (permanent, tail)]
        self._region.draw(*rows, num_pinned)
        return self.window.lines_so_far()


def test_only_rows_that_change_are_written() -> None:
    region = Region(20, 10)
    assert region.draw("", "a b c") == ["a", "b", "c"]
    assert region.draw("", "a b c d") == ["a", "b", "c", "d"]
    assert "a" not in region.written and "\x1b[A" not in region.written
    assert region.draw("a b", "c e") == ["a", "b", "c", "e"]
    assert "a" not in region.written and "b" not in region.written
    region.draw("", "c e")
    assert region.written == ""
    assert region.draw("", "c") == ["a", "b", "c"]
    assert region.draw("", "c f") == ["a", "b", "c", "f"]
    assert region.draw("c f", "") == ["a", "b", "c", "f", ""]
    assert region.draw("g", "") == ["a", "b", "c", "f", "g", ""]


def test_a_row_that_may_be_cut_off_is_written_again_when_it_is_permanent() -> None:
    region = Region(10, 10)
    region.draw("", "你好你好 a b")
    region.draw("", "你好你好 a c")
    assert "你" not in region.written
    region.draw("你好你好", "a")
    assert "你好你好" in region.written


def test_a_row_takes_all_columns() -> None:
    region = Region(4, 5)
    assert region.draw("", "abcd efgh") == ["abcd", "efgh"]
    assert region.draw("abcd efgh", "ijkl") == ["abcd", "efgh", "ijkl"]
    assert region.draw("ijkl", "") == ["abcd", "efgh", "ijkl", ""]


def test_the_tail_takes_the_window_but_one_row_and_keeps_a_head() -> None:
    region = Region(20, 5)
    assert region.draw("", "head 1 2 3 4 5", 1) == ["head", "3", "4", "5"]
    assert region.draw("", "1 2 3 4 5 6") == ["3", "4", "5", "6"]
    assert region.draw("1 2 3 4 5 6", "7") == ["1", "2", "3", "4", "5", "6", "7"]
    assert Region(20, 1).draw("", "1 2 3", 1) == ["3"]


@pytest.mark.parametrize("columns", [20, 30])
def test_rows_that_leave_a_lower_window_are_not_repeated(columns: int) -> None:
    region = Region(20, 10)
    region.draw("x", "1 2 3 4 5 6")
    region.window.resize(4, columns)
    assert region.draw("", "1 2 3 4 5 7") == ["x", "1", "2", "4", "5", "7"]
    assert region.draw("1 2 3 4 5 7", "8 9") == ["x", "1", "2", "3", "4", "5", "7", "8", "9"]
    region.window.resize(12, columns)
    assert region.draw("", "8 a") == ["x", "1", "2", "3", "4", "5", "7", "8", "a"]


def test_rows_that_changed_after_they_left_the_window_are_complete() -> None:
    region = Region(20, 10)
    region.draw("", "1 2 3 4 5")
    region.window.resize(3, 20)
    region.draw("", "1 two 3 4 5")
    assert region.draw("1 two 3 4 5", "") == ["1", "2", "two", "3", "4", "5", ""]
