"""Pieces of texts: every word is in one, at the line that it names; the words of a search."""

from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.knowledge.pieces import pieces_of
from swiftchat.chat.knowledge.words import words_of, words_of_question

LINES = st.lists(st.sampled_from(["", "# Head", "def f():", "a word " * 20, "x" * 3000, "end"]))


@given(LINES)
def test_pieces_have_all_lines_where_they_say(lines: list[str]) -> None:
    text = "\n".join(lines)
    pieces = list(pieces_of(text))
    assert "".join("".join(piece.text.split()) for piece in pieces) == "".join(text.split())
    for piece in pieces:
        number = int(piece.place.removeprefix(":"))
        first = piece.text.split("\n")[0]
        assert first in lines[number - 1]
        assert 0 < len(piece.text) <= 1400


def test_a_new_heading_begins_a_piece() -> None:
    paragraph = "Some words. " * 30
    text = f"# One\n\n{paragraph}\n# Two\n\n{paragraph}\n"
    assert [(one.place, one.text[:5]) for one in pieces_of(text)] == [
        (":1", "# One"),
        (":4", "# Two"),
    ]


def test_pieces_of_a_document_name_its_pages() -> None:
    text = "## Page 2\n\nfirst\n\n## Page 3\n\nsecond\n"
    assert [one.place for one in pieces_of(text, has_pages=True)] == ["#2", "#3"]


def test_words_are_also_parts_of_names() -> None:
    names = "maxtokens max tokens httpserver http server v2 v 2"
    assert list(words_of("maxTokens = HTTPServer_v2")) == names.split()
    assert list(words_of("桜が咲く")) == ["桜が", "が咲", "咲く"]
    piped = [f"z{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(70)]
    assert words_of_question(f"{' '.join(piped)} What is it?") == piped[-64:]
    assert words_of_question("What is the capital of France, the capital?") == ["capital", "france"]
