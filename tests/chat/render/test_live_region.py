"""The rows that are redrawn while an answer streams leave the last column free."""

from collections.abc import Sequence

import pytest

from swiftchat.chat.render.live_region import LiveRegion

ROW = "one two three"  # 13 cells


def drawn(
    columns: int, lines: int, tail: Sequence[str], title: str = "", by_words: bool = True
) -> list[str]:
    """Return the rows that are drawn on an empty screen."""
    written: list[str] = []
    region = LiveRegion(written.append, lambda: (columns, lines), rewraps=False)
    region.draw((), tail, title, by_words=by_words)
    (text,) = written
    return text.removeprefix("\x1b[?7l").removesuffix("\x1b[?7h").split("\n")


@pytest.mark.parametrize("by_words", [True, False])
def test_a_row_takes_all_columns_but_the_last(by_words: bool) -> None:
    assert drawn(14, 40, [ROW], by_words=by_words) == [ROW]
    narrow = ["one two", "three"] if by_words else ["one two thre", "e"]
    assert [row.rstrip() for row in drawn(13, 40, [ROW], by_words=by_words)] == narrow
    assert drawn(14, 40, [ROW], title="one two thre…")[0] == "one two thre…"


def test_the_tail_takes_at_most_half_the_screen_with_its_title() -> None:
    tail = [str(number) for number in range(9)]
    assert drawn(20, 8, tail, title="title") == ["title", "6", "7", "8"]
    assert drawn(20, 8, tail) == ["5", "6", "7", "8"]
    assert drawn(20, 1, tail) == ["8"]
