"""Control characters are replaced before text reaches a terminal."""

import json
import sys
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.terminal.sanitize import escape_invisible, sanitize, sanitize_prose

HIDDEN = (
    "\u061c\u200e\u200f\u202a\u202b\u202d\u202e\u2061\u2066\u2067\u2069\u206f\ufeff\ufff9"
    "\U0001d173\U000e0001\U000e0041"
)
JOINERS = "\u200c\u200d\u00ad\u200b\u2060\u0600"


@given(st.text())
def test_sanitize_removes_every_control_character(text: str) -> None:
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


def test_what_hides_or_reorders_text_is_visible_and_what_languages_need_stays() -> None:
    assert set(sanitize(HIDDEN)) == {"\ufffd"}
    assert sanitize(JOINERS) == JOINERS
    for text in (
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "👩\u200d💻",
        "❤\ufe0f",
    ):
        assert sanitize(text) == text


def test_every_format_character_is_either_needed_or_replaced() -> None:
    """A new one of Unicode's has to be decided upon."""
    needed = {0xAD, 0x180E, 0x200B, 0x200C, 0x200D, 0x2060}
    visible = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    visible |= {*range(0x13430, 0x13440), *range(0x1BCA0, 0x1BCA4)}
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) == "Cf":
            is_kept = sanitize(chr(code)) == chr(code)
            assert is_kept == (code in needed | visible), hex(code)


@given(st.text(st.characters(codec="utf-8")))
def test_escapes_are_those_of_json(text: str) -> None:
    shown = escape_invisible(json.dumps(text, ensure_ascii=False))
    assert json.loads(shown) == text and shown.isprintable()


def test_everything_without_a_glyph_is_escaped() -> None:
    for character in HIDDEN + JOINERS + "\n\x1b\u3164\u2800\ufe0f\U000e0101\u00a0\ud800":
        assert escape_invisible(f"a{character}b") == f"a{json.dumps(character)[1:-1]}b"
    assert escape_invisible("cat 'über 日本 שלום' 👍") == "cat 'über 日本 שלום' 👍"


@given(st.text())
def test_prose_keeps_marks_and_isolates_only(text: str) -> None:
    directions = "\u061c\u200e\u200f\u2066\u2067\u2068\u2069"
    for before, after in zip(text, sanitize_prose(text), strict=True):
        assert after == (before if before in directions else sanitize(before))


def test_overrides_and_embeddings_stay_visible_in_prose() -> None:
    assert sanitize_prose("\u202aa\u202bb\u202cc\u202dd\u202ee\x1b") == "�a�b�c�d�e␛"
    assert sanitize_prose("שלום\u200f!") == "שלום\u200f!"
