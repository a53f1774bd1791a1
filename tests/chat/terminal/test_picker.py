"""The picker of rows: moving, filtering, its window."""

from swiftchat.chat.terminal.picker import Row, _Choice

ROWS = [Row(f"model:{i}b", "tools" if i % 2 else "thinking") for i in range(30)]


def test_the_choice_moves_within_the_rows() -> None:
    choice = _Choice(ROWS)
    choice.move(-1)
    assert choice.chosen == 0 and choice.window(12) == list(range(12))
    for _ in range(40):
        choice.move(1)
    assert choice.chosen == 29 and choice.window(12) == list(range(18, 30))
    choice.move(-1)
    assert choice.chosen == 28 and 28 in choice.window(12)


def test_all_words_of_the_filter_must_match() -> None:
    choice = _Choice(ROWS)
    choice.move(5)
    choice.set_filter("TOOLS 3b")
    assert choice.window(12) == [3, 13, 23] and choice.chosen == 3
    choice.move(1)
    assert choice.chosen == 13
    choice.set_filter("tools none")
    assert choice.window(12) == [] and choice.chosen is None
    choice.move(1)
    assert choice.chosen is None
    choice.set_filter("")
    assert choice.chosen == 0
