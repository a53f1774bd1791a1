"""Control characters are replaced before text reaches a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.terminal.sanitize import sanitize


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
