"""The input of a terminal that cannot move its cursor."""

import contextlib
from collections.abc import Iterator

import pytest

from swiftchat.chat.repl.line_queue import LineQueue
from swiftchat.chat.repl.plain_input import PlainPrompt
from swiftchat.chat.terminal.input_scanner import InputEvent
from swiftchat.chat.terminal.keyboard import Keyboard


class ScriptedKeyboard(Keyboard):
    """Has some events before the prompt; the others arrive while the terminal edits the line."""

    def __init__(self, before: list[InputEvent], later: list[InputEvent]) -> None:
        super().__init__(is_dumb=True)
        self._events.extend(before)
        self._later = later

    @contextlib.contextmanager
    def line_mode(self) -> Iterator[None]:
        yield

    def wait(self) -> None:
        self._events.append(self._later.pop(0))


def prompt(keyboard: Keyboard) -> str:
    return PlainPrompt(LineQueue(keyboard, lambda line: None)).prompt()


def paste(text: bytes) -> InputEvent:
    return InputEvent(True, text)


ENTER = InputEvent(False, b"\n")


@pytest.mark.parametrize("is_before", [True, False], ids=["before the prompt", "at the prompt"])
@pytest.mark.parametrize(
    ("event", "told", "message"),
    [
        (paste(b"one\n"), "(1 line; Enter sends it)", "one"),
        (paste(b"one"), "(1 line; Enter sends it)", "one"),
        (paste(b"one\rtwo\r\n"), "(2 lines; Enter sends them)", "one\ntwo"),
        (paste(b"one\n\nthree"), "(3 lines; Enter sends them)", "one\n\nthree"),
    ],
)
def test_a_line_that_was_typed_early_is_offered_wherever_it_is_read(
    capsys: pytest.CaptureFixture[str],
    event: InputEvent,
    told: str,
    message: str,
    is_before: bool,
) -> None:
    """A machine that is busy reads it later, in the prompt: it is neither sent nor lost."""
    before, later = ([event], [ENTER]) if is_before else ([], [event, ENTER])
    assert prompt(ScriptedKeyboard(before, later)) == message
    shown = capsys.readouterr().out
    assert shown.count(told) == 1 and shown.endswith(f"{told}\nYou >>> ")


def test_a_typed_line_is_sent_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    keyboard = ScriptedKeyboard([], [InputEvent(False, b"typed\n")])
    assert prompt(keyboard) == "typed"
    assert capsys.readouterr().out == "You >>> "
