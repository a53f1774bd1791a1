"""The question for the background color: the answer is found, and no other input is lost."""

import contextlib
import json
import shlex
import time
from pathlib import Path

import pytest

from swiftchat.chat.terminal.input_scanner import ASK_BACKGROUND, InputEvent, InputScanner
from tests.chat.terminal.test_terminal import Terminal
from tests.support import fake_engine
from tests.support.program import Program

LIGHT, DARK = b"rgb:ffff/ffff/ffff", b"rgb:0000/0000/0000"
ANSWERS = [b"\x1b]11;" + LIGHT + end for end in (b"\x07", b"\x1b\\")]


def typed(events: list[InputEvent]) -> bytes:
    assert not any(event.is_paste for event in events)
    return b"".join(event.data for event in events)


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_in_any_pieces_leaves_what_was_typed(answer: bytes) -> None:
    data, start = b"ab" + answer + b"cd", len(b"ab\x1b]11;")
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            scanner = InputScanner()
            events = scanner.feed(data[:first])
            if first >= start:  # before, it may be a key
                events += scanner.pause()
            events += scanner.feed(data[first:second]) + scanner.feed(data[second:])
            assert typed(events + scanner.pause()) == b"abcd", (first, second)
            assert scanner.background is not None and scanner.background.startswith(LIGHT)


def test_an_answer_without_an_end_is_dropped_and_ctrl_c_passes() -> None:
    scanner = InputScanner()
    assert scanner.feed(b"\x1b]11;rgb:ff") == []
    assert typed(scanner.feed(b"\x03")).endswith(b"\x03")
    scanner = InputScanner()
    scanner.feed(b"\x1b]11;rgb:ff")
    for _ in range(20):
        assert scanner.pause() == []
    assert not scanner.is_waiting and typed(scanner.feed(b"x")) == b"x"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(fake_engine.make_folder(tmp_path / "model"))


def asked(
    program: Program, *answers: object, options: tuple[str, ...] = (), **env: str
) -> Terminal:
    """Start a chat and wait until it has asked for the background color."""
    command, *args = program.command(*answers, options=options)
    terminal = Terminal(command, args, NO_COLOR="", COLORFGBG="")
    wait_asked(terminal)
    return terminal


def wait_asked(terminal: Terminal) -> None:
    terminal.wait_for(lambda text: ASK_BACKGROUND in terminal.raw)


@pytest.mark.parametrize(("color", "code"), [(LIGHT, b"\x1b[34m"), (DARK, b"\x1b[96m")])
def test_a_chat_has_the_colors_for_the_background(
    program: Program, color: bytes, code: bytes
) -> None:
    terminal = asked(program, "Some `code` here.")
    terminal.process.send(b"Hel")
    terminal.process.send(b"\x1b]11;" + color[:9])
    time.sleep(0.2)  # longer than a pause between keys
    terminal.process.send(color[9:] + b"\x1b\\lo")
    terminal.wait_for(">>> Hello")
    terminal.type("\r")
    terminal.wait_for("Some code here.")
    assert code + b"code" in terminal.raw
    terminal.type("\x04")
    assert terminal.wait_end() == 0


def test_a_terminal_that_does_not_answer_has_the_colors_for_any(program: Program) -> None:
    saved = json.loads(program.run("-p", "Some `code`?", "--json").stdout)
    terminal = asked(program, "Some `code` here.", options=("--session", saved["session_id"]))
    terminal.type("Hello\r")
    terminal.wait_for("Some code here.")
    assert b"\x1b[36mcode" in terminal.raw
    terminal.process.close(force=True)


@pytest.mark.parametrize(
    ("options", "env"),
    [
        (("--theme", "dark"), {}),
        (("--theme", "none"), {}),
        (("--color", "never"), {}),
        (("--accessible",), {}),
        ((), {"NO_COLOR": "1"}),
        ((), {"TERM": "dumb"}),
        ((), {"TERM": "linux"}),
    ],
)
def test_a_chat_that_needs_no_answer_does_not_ask(
    program: Program, options: tuple[str, ...], env: dict[str, str]
) -> None:
    command, *args = program.command("Fine.", options=options)
    terminal = Terminal(command, args, **env)
    terminal.wait_for(">>>")
    terminal.type("Hello\r")
    terminal.wait_for("Fine.")
    assert ASK_BACKGROUND not in terminal.raw
    terminal.process.close(force=True)


def test_the_shell_gets_no_late_answer(program: Program) -> None:
    terminal = Terminal("bash", ["--norc", "--noprofile", "-i"], PS1="$ ", NO_COLOR="")
    terminal.wait_for("$")
    command = shlex.join(program.command())
    terminal.type(f"clear; {command}; IFS= read -t 1 -r -n 1 x; echo \"<$x>\" 'd'one\r")
    wait_asked(terminal)
    terminal.process.send(b"\x04")  # leaves before the answer comes
    time.sleep(0.1)
    terminal.process.send(b"\x1b]11;" + LIGHT + b"\x1b\\")
    terminal.wait_for("<> done")
    with contextlib.suppress(OSError):
        terminal.process.close(force=True)
