"""Typed keys and pasted text in terminal input, in any chunks."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.terminal.input_scanner import InputEvent, InputScanner


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
