"""Tables of help texts break between words at every width."""

import pytest

from swiftchat.chat.help.columns import two_columns
from swiftchat.chat.help.conversation_pages import KEYS
from swiftchat.chat.slash.registry import COMMANDS


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 200])
def test_tables_break_between_words(width: int) -> None:
    rows = [*(command.help_row for command in COMMANDS), *KEYS, ("name", "")]
    text = two_columns(rows, width)
    assert text.split() == [word for row in rows for cell in row for word in cell.split()]
    longest = max(len(word) for _, right in rows for word in right.split())
    # The left column is never broken.
    limit = max(width, *(len(left) + 2 for left, _ in rows), 6 + longest)
    assert max(map(len, text.splitlines())) <= limit
    assert width > 60 or "\n" in two_columns([("a", "word " * 20)], width)
