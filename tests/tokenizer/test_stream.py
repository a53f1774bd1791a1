"""Incremental decoding, and stop strings that span pieces of text."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.tokenizer import StopMatcher, Tokenizer

# Every byte is a token, so any sequence of bytes can be split anywhere.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
SYMBOLS = [chr(b) if b in PRINTABLE else chr(0x100 + OTHERS.index(b)) for b in range(256)]
MULTI_BYTE = [SYMBOLS[0xE4] + SYMBOLS[0xBD], SYMBOLS[0xA0] + SYMBOLS[0xF0], "the"]
SPEC: dict[str, Any] = {
    "added_tokens": [
        {"id": 259, "content": "<|end|>", "special": True},
        {"id": 260, "content": "<a b>\u4f60", "special": False},
    ],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
    "decoder": {"type": "ByteLevel"},
    "model": {
        "type": "BPE",
        "merges": [],
        "vocab": {token: number for number, token in enumerate(SYMBOLS + MULTI_BYTE)},
    },
}
OURS = Tokenizer.from_json(SPEC)


def streamed(ids: list[int], skip_special: bool) -> str:
    stream = OURS.stream(skip_special)
    return "".join(stream.push(token_id) for token_id in ids) + stream.flush()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 310), st.sampled_from([0xE4, 0xBD, 0xA0, 0xF0, 0xED, 259]))),
    st.booleans(),
)
def test_streamed_text_equals_decoded_text(ids: list[int], skip_special: bool) -> None:
    assert streamed(ids, skip_special) == OURS.decode(ids, skip_special)


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_encoded_text_streams_back_unchanged(text: str) -> None:
    assert streamed(OURS.encode(text), True) == text


def test_incomplete_character_is_held_back() -> None:
    stream = OURS.stream()
    emoji = list("\U0001f600".encode())
    assert [stream.push(byte) for byte in emoji] == ["", "", "", "\U0001f600"]
    assert [stream.push(byte) for byte in (emoji[0], emoji[1], ord("a"))] == ["", "", "\ufffda"]
    assert stream.push(emoji[0]) == ""
    assert stream.flush() == "\ufffd"
    assert stream.push(ord("b")) == "b"


def test_decoding_with_and_without_special_tokens() -> None:
    ids = [256 + 2, 259, 260, 259, 256 + 2]
    assert OURS.decode(ids) == "the<|end|><a b>\u4f60<|end|>the"
    assert OURS.decode(ids, skip_special=True) == "the<a b>\u4f60the"


def first_stop(text: str, stops: list[str]) -> int | None:
    """Return the start of the stop string that ends first, by brute force."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return end - max(map(len, matches))
    return None


@settings(max_examples=200, deadline=None)
@given(
    pieces=st.lists(st.text("ab\u00e9", max_size=5), max_size=12),
    stops=st.lists(st.text("ab\u00e9", min_size=1, max_size=4), max_size=4),
)
def test_stop_position_does_not_depend_on_the_pieces(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    matcher = StopMatcher(stops)
    released = ""
    for piece in pieces:
        released += matcher.push(piece)
        assert text.startswith(released)
    stopped = matcher.stopped
    released += matcher.flush()
    at = first_stop(text, stops)
    assert stopped == (at is not None)
    assert released == text[:at]


@settings(max_examples=100, deadline=None)
@given(
    text=st.text("ab", max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_only_possible_stop_prefixes_are_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    released = matcher.push(text)
    if not matcher.stopped:
        held = text[len(released) :]
        possible = [
            n
            for n in range(len(text) + 1)
            if any(stop.startswith(text[len(text) - n :]) for stop in stops)
        ]
        assert len(held) == max(possible)


def test_stop_matcher() -> None:
    matcher = StopMatcher(["</end>", "###"])
    assert [matcher.push(piece) for piece in ("a<", "/e", "x#", "#", "b##", "#c")] == [
        "a",
        "",
        "</ex",
        "",
        "##b",
        "",
    ]
    assert matcher.stopped
    assert matcher.push("more") == ""
    assert matcher.flush() == ""
    with pytest.raises(ValueError, match="empty"):
        StopMatcher([""])
    assert StopMatcher([]).push("all") == "all"
