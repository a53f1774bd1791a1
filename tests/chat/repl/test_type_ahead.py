"""The keys that are typed while no prompt reads them, as lines and a draft."""

import pytest

from swiftchat.chat.repl.pastes import Pastes
from swiftchat.chat.repl.type_ahead import Typed
from swiftchat.chat.terminal.input_scanner import InputEvent, InputScanner

PASTE = "\x1b[200~{}\x1b[201~"
LONG = PASTE.format("line\r" * 30)


def typed(*chunks: str) -> tuple[tuple[str, ...], str]:
    """Return the lines and the draft, with the cursor as `|` unless it is at the end."""
    scanner, pastes, found = InputScanner(), Pastes(), Typed()
    for chunk in chunks:
        for event in [*scanner.feed(chunk.encode()), *scanner.pause()]:
            found = found.after(event, pastes)
    draft = pastes.labeled(found.draft)
    is_at_end = found.cursor == len(found.draft)
    return found.lines, draft if is_at_end else f"{draft[: found.cursor]}|{draft[found.cursor :]}"


@pytest.mark.parametrize(
    ("keys", "lines", "draft"),
    [
        (["one", "\r", "two", "\r", "thr"], ("one", "two"), "thr"),
        (["\r", "  ", "\r"], (), ""),
        (["eins\x7f\x7f\x7fé中"], (), "eé中"),
        (["abc", "\x1b[D", "\x1b[D", "X"], (), "aX|bc"),
        (["abc", "\x01", "\x0b", "d"], (), "d"),
        (["one two ", "\x17", "\x15", "x"], (), "x"),
        (["one\ntwo", "\x01", "X"], (), "one\nX|two"),
        (["ab", "\x1b[H", "\x1b[3~"], (), "|b"),
        (["a\\", "\r", "b", "\r"], ("a\nb",), ""),
        (['"""', "\r", "a", "\r", '"""', "\r"], ('"""\na\n"""',), ""),
        (["a", "\x1b\r", "b", "\r"], ("a\nb",), ""),
        (["one", "\r", "two", "\r", "\x1b[A", "!", "\r"], ("one", "two!"), ""),
        (["one", "\r", "dr", "\x1b[A", "aft"], (), "one\ndraft"),
        (["\x1b[A", "\x04", "\t", "\x1bb", "\x1bOP", "\x1b[15~", "x"], (), "x"),
        ([PASTE.format("pasted\r"), "\r", "more", "\r"], (), "pasted\n\nmore\n"),
        (["see ", LONG, "\r"], (), "see [pasted 30 lines]\n"),
        ([LONG, "\x7f", "typed", "\r"], ("typed",), ""),
        (["one\rtwo\r"], (), "one\ntwo\n"),  # too fast for fingers
    ],
)
def test_keys(keys: list[str], lines: tuple[str, ...], draft: str) -> None:
    assert typed(*keys) == (lines, draft)


def test_a_character_in_two_events() -> None:
    found = Typed()
    for data in (b"\xe4\xb8", b"\xad\r"):
        found = found.after(InputEvent(False, data), Pastes())
    assert found.lines == ("中",)


def test_lines_that_are_held_are_a_draft() -> None:
    held = Typed(("one", "two"), "thr", 3).held()
    assert (held.lines, held.draft, held.cursor) == ((), "one\ntwo\nthr", 11)
    assert Typed().held() == Typed()
