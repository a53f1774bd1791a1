"""The input line wraps between words."""

from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.layout.screen import Char

from swiftchat.chat.repl.word_wrap import paddings
from tests.chat.repl.test_pastes import Chat
from tests.chat.repl.test_pastes import chat as chat


def rows(text: str, width: int, start: int, next_start: int) -> list[str]:
    """Return the rows that prompt_toolkit would draw, wrapped at the full width."""
    pads = paddings(text, width, start, next_start)
    padded = "".join(" " * pads.get(i, 0) + char for i, char in enumerate(text))
    found, column = [""], start
    for char in padded:
        if column + Char(char).width > width:
            found.append("")
            column = next_start
        found[-1] += char
        column += Char(char).width
    return found


def test_rows_end_between_words() -> None:
    assert rows("one two three four five", 14, 4, 4) == ["one two   ", "three four", " five"]
    assert rows("a 你好世界 b", 12, 4, 4) == ["a       ", "你好世界", " b"]
    assert rows("x a_word_longer_than_a_row", 14, 4, 4)[0] == "x a_word_l"


@given(
    st.lists(st.sampled_from(["a", "word", "你好", "twelve-chars", "\t", ""])), st.integers(20, 40)
)
def test_no_word_that_fits_a_row_is_broken(words: list[str], width: int) -> None:
    text = " ".join(words)
    drawn = rows(text, width, 8, 4)
    assert "".join(drawn).replace(" ", "") == text.replace(" ", "")
    assert [word for row in drawn for word in row.split(" ") if word] == [w for w in words if w]


def test_typed_words_move_to_the_next_row(chat: Chat) -> None:
    terminal = chat("Sent.", columns=30)
    terminal.type("the quick brown fox jumps over the lazy dog")
    text = terminal.wait_for("dog")
    assert ">>> the quick brown fox jumps\n... over the lazy dog" in text
    terminal.type_now("\x01" + "\x1b[C" * 26 + "J")  # the cursor moves by characters of the text
    terminal.wait_for("... Jover the lazy dog")
    terminal.type("\x05\r")
    terminal.wait_for("Sent.")
