"""Answers that match a grammar are shown as they are, while they arrive and later."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.render.markdown_view import MarkdownView
from swiftchat.chat.render.reprint import conversation_rows
from swiftchat.chat.render.style import Style

TEXT = json.dumps({"__name__": "*Ann*", "tags": ["# one", "- two"], "of": {"a": 1}}, indent=2)
STYLE = Style("markdown", is_live=False)


def shown(text: str, piece: int, columns: int = 80) -> list[str]:
    written: list[str] = []
    answer: Any = SimpleNamespace(is_constrained=True)
    view = MarkdownView(STYLE, answer, "model", written.append, lambda: (columns, 24))
    for start in range(0, len(text), piece):
        view.push(text[start : start + piece])
    view.close()
    return "".join(written).replace("\r", "").rstrip("\n").split("\n")


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_lines_are_shown_as_they_are(piece: int) -> None:
    assert shown(TEXT, piece) == TEXT.split("\n")
    assert shown("a\n\n  b\n", piece) == ["a", "", "  b"]


@pytest.mark.parametrize("piece", [100, 100_000])
def test_a_long_line_is_complete(piece: int) -> None:
    text = json.dumps(list(range(2500)))
    rows = shown(text, piece)
    assert len(text) > 3 * 4096 and all(len(row) <= 80 for row in rows)
    assert "".join(rows).replace(" ", "") == text.replace(" ", "")


def test_json_is_reprinted_as_it_was() -> None:
    conversation = Conversation()
    conversation.add("assistant", TEXT)
    conversation.add("assistant", "*Ann*")
    rows = conversation_rows(STYLE, conversation.messages, 80)
    assert rows[: TEXT.count("\n") + 1] == TEXT.split("\n")
    assert "*" not in rows[-2] and "Ann" in rows[-2]
