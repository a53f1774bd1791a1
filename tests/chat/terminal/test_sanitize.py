"""Control characters are replaced before text reaches a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.terminal.sanitize import sanitize, sanitize_prose


@given(st.text())
def test_sanitize_removes_every_control_character(text: str) -> None:
    import unicodedata

    out = sanitize(text)
    assert len(out) == len(text)
    for before, after in zip(text, out, strict=True):
        if unicodedata.category(before) == "Cc" and before not in "\n\t":
            assert unicodedata.category(after) not in ("Cc", "Cf")
        elif unicodedata.category(before) not in ("Cf", "Zl", "Zp"):
            assert after == before


def test_sanitize_stops_known_attacks() -> None:
    for attack in ("\x1b]52;c;ZXZpbA==\x07", "\x9b2J", "\u202eevil", "\u2066", "\r", "\x7f"):
        assert not set(sanitize(attack)) & set("\x1b\x07\x9b\u202e\u2066\r\x7f")


@given(st.text())
def test_prose_keeps_marks_and_isolates_only(text: str) -> None:
    directions = "\u061c\u200e\u200f\u2066\u2067\u2068\u2069"
    for before, after in zip(text, sanitize_prose(text), strict=True):
        assert after == (before if before in directions else sanitize(before))


def test_overrides_and_embeddings_stay_visible_in_prose() -> None:
    assert sanitize_prose("\u202aa\u202bb\u202cc\u202dd\u202ee\x1b") == "�a�b�c�d�e␛"
    assert sanitize_prose("שלום\u200f!") == "שלום\u200f!"
