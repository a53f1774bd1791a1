"""Text that is typed or pasted while no prompt reads it becomes a draft."""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swiftchat.chat.repl.input import open_history
from swiftchat.chat.repl.pastes import Pastes
from tests.support import fake_engine
from tests.support.open_terminals import chats
from tests.support.paste_trials import ENDS, MOMENTS, Trial, run_trial
from tests.support.program import Program
from tests.support.terminal import Terminal

Chat = Callable[..., Terminal]
LONG = {"text": "x" * 3000, "delay_s": 0.01}


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    with chats(Program(fake_engine.make_folder(tmp_path / "model"))) as open_chat:
        yield open_chat


PASTE = "\x1b[200~" + "".join(f"line {i}\r" for i in range(300)) + "\x1b[201~"


@pytest.mark.fault(43)
def test_ctrl_c_behind_a_large_paste_stops_the_answer(chat: Chat) -> None:
    terminal = chat(LONG, "Next.")
    terminal.type("go\r")
    terminal.wait_for("xxx")
    terminal.type_now("\x1b[200~" + "words " * 20_000 + "\x1b[201~\x03")
    terminal.wait_for("stopped")
    terminal.wait_for(">>> [pasted 120000 characters]")


@pytest.mark.fault(43)
def test_text_and_pastes_during_an_answer_are_one_draft(chat: Chat) -> None:
    terminal = chat({"text": "0123456789" * 10, "delay_s": 0.01}, "Second.")
    terminal.type("go\r")
    terminal.wait_for("0123")
    terminal.type_now(f"sum up {PASTE} please\x7fE\r\x04")
    terminal.wait_for(">>> sum up [pasted 300 lines] pleasE")
    text = terminal.wait_for(lambda text: terminal.is_at_prompt and "Ctrl-C stops" not in text)
    assert ">>> sum up [pasted 300 lines] pleasE" in text
    assert "0123456789" * 8 in text and "Second." not in text
    terminal.type("\r")
    terminal.wait_for("the context 256")  # the whole text was sent


def test_lines_without_paste_marks_are_one_draft(chat: Chat) -> None:
    terminal = chat("First.", "Second.")
    terminal.type_now("one\rtwo\rthree\r")
    text = terminal.wait_for(">>> one\n... two\n... three\n...")
    assert "First." not in text
    terminal.type("\r")
    terminal.wait_for("First.")
    assert "Second." not in terminal.look()


def test_a_screen_reader_terminal_sends_pasted_lines_at_enter(
    chat: Chat,
) -> None:
    terminal = chat("First.", "Second.", TERM="dumb")
    terminal.type_now("one\rtwo\rthree\r")
    terminal.wait_for("(3 lines; Enter sends them)")
    assert "First." not in terminal.look()
    time.sleep(0.2)
    terminal.type_now("\r")
    terminal.wait_for("First.")
    assert "Second." not in terminal.look()


def test_what_was_typed_during_a_shell_command_is_not_sent(
    chat: Chat,
) -> None:
    terminal = chat("Sent.")
    terminal.type("!cat; echo ended\r")
    terminal.wait_for(lambda text: text.rstrip().endswith("cat; echo ended"))
    terminal.type_now("for cat\r")
    # Echoed, perhaps twice, and printed by cat.
    terminal.wait_for(lambda text: text.count("for cat") > 1)
    terminal.type_now("\x04")
    terminal.wait_for("ended\n/attach")
    terminal.type("!sleep 1\r")
    terminal.wait_for("!sleep 1\n")
    terminal.type_now("typed ahead\r")
    terminal.wait_for(">>> typed ahead")
    assert "Sent." not in terminal.look()


def test_ctrl_c_ends_a_shell_command_and_the_chat_goes_on(chat: Chat) -> None:
    terminal = chat("Sent.")
    terminal.type("!echo begun; sleep 60\r")
    terminal.wait_for("\nbegun")
    terminal.type_now("\x03")
    terminal.wait_for("interrupted")
    terminal.type("hello\r")
    terminal.wait_for("Sent.")


def test_typing_while_the_program_starts(tmp_path: Path) -> None:
    folder = fake_engine.make_folder(tmp_path / "model")
    command = f"{sys.executable} {fake_engine.__file__} {folder} '[\"Sent.\"]'"
    terminal = Terminal("bash", ["--norc", "--noprofile", "-i"], PS1="$ ")
    terminal.wait_for("$")
    terminal.type_now(f"clear; {command}\rtyped early\r")
    terminal.wait_for(">>> typed early")
    assert "Sent." not in terminal.look()
    terminal.type("\r")
    terminal.wait_for("Sent.")
    terminal.process.close(force=True)


def test_the_terminal_asks_for_marks_until_the_end(chat: Chat) -> None:
    terminal = chat("First.", "Second.")
    for text in ("First.", "Second."):
        terminal.type("hello\r")
        terminal.wait_for(text)
    assert b"\x1b[?2004l" not in terminal.raw
    terminal.type("/bye\r")
    terminal.wait_end()
    assert os.fsencode("\x1b[?2004h") in terminal.raw


@pytest.mark.fault(43)
@pytest.mark.parametrize("number", range(len(MOMENTS)))
def test_a_large_paste_is_never_sent_and_never_runs(number: int) -> None:
    """A megabyte at the prompt; elsewhere many times what the system keeps for a terminal.

    `python -m tests.support.paste_trials` runs more of them.
    """
    delay_s = random.Random(number).uniform(0, 0.6)
    moment, end = MOMENTS[number], ENDS[number % len(ENDS)]
    size = 1 << 20 if moment == "prompt" else 1 << 16
    assert run_trial(Trial(moment, end, delay_s, size)) == ""


def test_a_long_entry_of_an_earlier_chat_is_folded(tmp_path: Path) -> None:
    file = tmp_path / "history"
    history = open_history(file, Pastes())
    entry = "sum up\n" + "\n".join(f"line {i}" for i in range(300))
    history.store_string(entry)
    history.store_string("short\nand short")
    pastes = Pastes()
    short, long = open_history(file, pastes).load_history_strings()
    assert short == "short\nand short" and len(long) < 20 and long.startswith("sum up\n")
    assert pastes.label(long[-1]) == "[pasted 300 lines]" and pastes.unfold(long) == entry
