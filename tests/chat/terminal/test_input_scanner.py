"""Typed keys and pasted text in terminal input, in any chunks."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.keys import Keys

from swiftchat.chat.repl.keyboard_input import KeyboardInput
from swiftchat.chat.terminal.input_scanner import InputEvent, InputScanner
from swiftchat.chat.terminal.keyboard import Keyboard


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def scan(*chunks: bytes) -> list[tuple[str, bytes]]:
    """Return what the scanner makes of chunks without pauses, and one pause at the end."""
    return named(scanned(chunks))


def scanned(chunks: Iterable[bytes]) -> list[InputEvent]:
    scanner = InputScanner(Clock())
    return [event for chunk in chunks for event in scanner.feed(chunk)] + scanner.pause()


def named(events: list[InputEvent]) -> list[tuple[str, bytes]]:
    return [("paste" if event.is_paste else "keys", event.data) for event in events]


@pytest.mark.parametrize("keys", [b"a", b"hello\r", b"\x03", b"\x1b[A", b"\x1b\r", b"\x1b"])
def test_typed_keys(keys: bytes) -> None:
    assert scan(keys) == [("keys", keys)]


def test_a_key_that_may_end_the_prompt_ends_its_event() -> None:
    assert scan(b"\x03abc\x04\x1a") == [
        ("keys", b"\x03"),
        ("keys", b"abc\x04"),
        ("keys", b"\x1a"),
    ]


def test_cursor_reports_are_events_of_their_own() -> None:
    assert scan(b"ab\x1b[12;1Rcd\r") == [
        ("keys", b"ab"),
        ("keys", b"\x1b[12;1R"),
        ("keys", b"cd\r"),
    ]


def test_a_marked_paste_keeps_every_byte() -> None:
    text = b"a\r\x03\x1a\x04\x1b[A\rb\r"
    assert scan(b"x\x1b[200~" + text + b"\x1b[201~y\r") == [
        ("keys", b"x"),
        ("paste", text),
        ("keys", b"y\r"),
    ]


@given(st.lists(st.sampled_from([b"line\r", b"\x03", b"\x1b[20", b"1~", b"\x1b"])), st.data())
def test_any_chunks_of_a_marked_paste_give_one_event(
    lines: list[bytes], data: st.DataObject
) -> None:
    text = b"".join(lines).replace(b"\x1b[201~", b"")
    stream = b"\x1b[200~" + text + b"\x1b[201~"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1))))
    chunks = [stream[i:j] for i, j in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    # A paste that ends with the first bytes of its own end mark ends there.
    expected = stream[6:].partition(b"\x1b[201~")[0]
    assert [event.data for event in scanned(chunks) if event.is_paste][:1] == [expected][
        : bool(expected)
    ]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_any_chunks_of_an_unmarked_paste_send_nothing(sizes: list[int]) -> None:
    lines = b"".join(b"line %d\r" % i for i in range(50))
    chunks = [b"first\rsecond\r"]
    for size in sizes:
        chunks.append(lines[:size])
        lines = lines[size:]
    events = scanned([*chunks, lines])
    assert all(event.is_paste for event in events)
    text = b"".join(b"line %d\r" % i for i in range(50))
    assert b"".join(event.data for event in events) == b"first\rsecond\r" + text


def test_a_slow_unmarked_paste_sends_nothing() -> None:
    clock = Clock()
    scanner = InputScanner(clock)
    events = scanner.feed(b"one\rtwo\r") + scanner.pause()
    clock.now_s = 0.3
    events += scanner.feed(b"three\r") + scanner.pause()
    assert all(event.is_paste for event in events)
    assert scanner.feed(b"\r") == [InputEvent(False, b"\r")]  # Enter alone was typed
    clock.now_s = 5
    assert scanner.feed(b"typed\r") == [InputEvent(False, b"typed\r")]


def test_ctrl_c_behind_an_unmarked_paste() -> None:
    assert scan(b"one\rtwo\r\x03") == [("paste", b"one\rtwo\r"), ("keys", b"\x03")]


def test_ctrl_c_in_a_marked_paste_without_an_end() -> None:
    scanner = InputScanner(Clock())
    scanner.feed(b"\x1b[200~text")
    scanner.pause()
    assert named(scanner.feed(b"\x03")) == [("paste", b"text"), ("keys", b"\x03")]


def test_the_rest_of_a_paste_that_another_program_has_begun_to_read() -> None:
    scanner = InputScanner(Clock())
    scanner.expect_paste()
    events = scanner.feed(b"end of a line\r") + scanner.feed(b"\x1b[201~") + scanner.pause()
    assert named(events) == [("paste", b"end of a line\r")]


def test_replies_of_the_terminal_are_dropped() -> None:
    assert scan(b"a\x1b]11;rgb:0000/0000/0000\x07b\x1bP1+r\x1b\\c") == [("keys", b"abc")]


KEYS = {  # by what is sent: the bytes of a legacy terminal
    b"\x1b[27;2;13~": b"\n",  # Shift-Enter
    b"\x1b[13;2u": b"\n",
    b"\x1b[13;2:1u": b"\n",
    b"\x1b[13;130u": b"\n",  # with num lock
    b"\x1b[27;5;13~": b"\r",
    b"\x1b[13u": b"\r",
    b"\x1b[57414u": b"\r",  # Enter of the keypad
    b"\x1b[13;3u": b"\x1b\r",
    b"\x1b[99;5u": b"\x03",
    b"\x1b[27;5;99~": b"\x03",
    b"\x1b[99;69u": b"\x03",  # with caps lock
    b"\x1b[1089::99;5u": b"",  # Ctrl with a letter that has no control character
    b"\x1b[99;6u": b"\x03",
    b"\x1b[99;5:3u": b"",  # released
    b"\x1b[99;9u": b"",  # with Super
    b"\x1b[27u": b"\x1b",
    b"\x1b[27;1;27~": b"\x1b",
    b"\x1b[97u": b"a",
    b"\x1b[97:65;2u": b"A",
    b"\x1b[97;2u": b"A",
    b"\x1b[49:33;2u": b"!",
    b"\x1b[97;;228u": b"\xc3\xa4",
    b"\x1b[27;2;65~": b"A",
    b"\x1b[98;3u": b"\x1bb",
    b"\x1b[9;2u": b"\x1b[Z",
    b"\x1b[127u": b"\x7f",
    b"\x1b[127;3u": b"\x1b\x7f",
    b"\x1b[32;5u": b"\x00",
    b"\x1b[57400u": b"1",
    b"\x1b[57419u": b"\x1b[A",
    b"\x1b[57441;2u": b"",  # Shift alone
    b"\x1b[1;129A": b"\x1b[A",
    b"\x1b[1;133D": b"\x1b[1;5D",
    b"\x1b[1;1:3A": b"",
    b"\x1b[3;5~": b"\x1b[3;5~",
    b"\x1b[P": b"\x1bOP",
}
REPORTS = [
    b"\x1b[I",
    b"\x1b[O",
    b"\x1b[?1;2c",
    b"\x1b[>41;354;0c",
    b"\x1b[?2026;2$y",
    b"\x1b[?0u",
    b"\x1b[0n",
    b"\x1b[8;24;80t",
    b"\x1b[<35;10;5M",
    b"\x1b[M !!",
    b"\x1b[?997;1n",
    b"\x1b[99999999999999999999u",
    b"\x1b]11;rgb:0000/0000/0000\x07",
    b"\x1b]52;c;aGVsbG8=\x1b\\",
    b"\x1bP>|kitty(0.35)\x1b\\",
    b"\x1bP1+r524742\x1b\\",
    b"\x1b_Gi=1;OK\x1b\\",
]


@pytest.mark.parametrize(("sent", "key"), KEYS.items())
def test_keys_of_every_protocol_act_as_keys_of_a_legacy_terminal(sent: bytes, key: bytes) -> None:
    assert scan(sent) == ([("keys", key)] if key else [])
    events = [event.data for event in scanned([b"a", sent, b"b"])]
    assert b"".join(events) == b"a" + key + b"b"


@given(st.sampled_from([*REPORTS, *KEYS]), st.data(), st.integers(0, 9))
def test_no_split_of_a_sequence_inserts_its_characters(
    sequence: bytes, data: st.DataObject, num_pauses: int
) -> None:
    """Also with pauses behind its first two bytes, as on a slow line."""
    cut = data.draw(st.integers(1, len(sequence) - 1))
    scanner = InputScanner(Clock())
    events = scanner.feed(b"a") + scanner.feed(sequence[:cut])
    for _ in range(num_pauses if cut > 2 else 0):
        events += scanner.pause()
    events += scanner.feed(sequence[cut:] + b"b") + scanner.pause()
    assert b"".join(event.data for event in events) == b"a" + KEYS.get(sequence, b"") + b"b"


def test_the_rest_of_a_sequence_that_never_comes_is_not_waited_for() -> None:
    scanner = InputScanner(Clock())
    events = scanner.feed(b"\x1b[12;")
    while scanner.is_waiting:
        events += scanner.pause()
    assert events == [] and named(scanner.feed(b"a")) == [("keys", b"a")]


def test_ctrl_c_ends_an_answer_without_an_end() -> None:
    assert scan(b"\x1b]11;rgb:00", b"\x03") == [("keys", b"\x03")]


@pytest.mark.parametrize("typed", [b"\x1bP", b"\x1bPx", b"\x1b]", b"\x1bOx", b"\x1b_"])
def test_escape_and_a_letter_typed_fast_are_keys(typed: bytes) -> None:
    """In vi mode they are two commands."""
    scanner = InputScanner(Clock())
    events = [event for byte in typed for event in scanner.feed(bytes([byte]))]
    events += scanner.pause() + scanner.feed(b"y")
    assert b"".join(event.data for event in events) == typed + b"y"


@given(st.from_regex(rb"\x1b\[[0-?]{0,8}[ -/]?[@-~]", fullmatch=True))
def test_no_sequence_inserts_its_characters(sequence: bytes) -> None:
    """Unless it is the key of a character."""
    if sequence in (b"\x1b[M", b"\x1b[["):  # more follows
        return
    keyboard = KeyboardInput(Keyboard())
    inserted = [
        key
        for event in scanned([sequence])
        for key in keyboard._parsed(event)
        if not isinstance(key.key, Keys)
    ]
    is_character = sequence.endswith((b"u", b"~"))
    assert len(inserted) <= is_character, inserted


@pytest.mark.parametrize("modified", [b"\x1b[1;8P", b"\x1b[24;7~", b"\x1b[6;13~", b"\x1b[1;12C"])
def test_modifiers_that_are_unknown_do_not_count(modified: bytes) -> None:
    keyboard = KeyboardInput(Keyboard())
    (event,) = scanned([modified])
    (key,) = [key for key in keyboard._parsed(event) if key.key is not Keys.Escape]
    assert isinstance(key.key, Keys)
