"""Faults that a chat must survive, tested with the program in a terminal or pipe.

The tests of all faults, by number:

| fault | tests |
|---|---|
| 2 killed while saving | `history/test_store::test_500_kills_while_saving_lose_no_message` |
| 3 control characters | here; `terminal/test_terminal::test_escape_sequences_in_an_answer_are_sanitized`; `render/test_markdown::test_control_characters_are_sanitized_at_every_split_point` |
| 11 Ctrl-C in an answer | `test_process::test_ctrl_c_stops_within_200_ms_and_keeps_the_text`; `history/test_killed_chats::test_ctrl_c_marks_the_answer_as_interrupted` |
| 14 control tokens in text | `model/test_answer::test_user_text_never_becomes_control_ids`; `tokenizer/test_template` |
| 17 out of memory in an answer | here |
| 18 context full | here; `history/test_conversation::test_a_full_context_is_an_error` |
| 26 two writers | `history/test_store::test_two_writers_of_one_conversation_create_branches` |
| 27 damaged database | here; `history/test_store::test_a_damaged_file_is_renamed_with_a_warning` |
| 28 modes of files | `history/test_store::test_the_store_is_private_with_any_umask`; `test_process::test_the_history_file_is_private` |
| 35 closed stdout | `test_process::test_a_closed_pipe_exits_silently_with_141` |
| 36 SIGHUP, SIGTERM | `history/test_killed_chats::test_a_killed_chat_continues_with_its_partial_answer`, `::test_closing_the_terminal_is_a_hangup` |
| 37 poor locales, odd bytes | `test_process::test_characters_outside_the_encoding_are_replaced`, `::test_undecodable_arguments_and_stdin_are_replaced` |
| 38 any size, dumb, no tty | here; `test_process::test_any_size_of_terminal`, `::test_a_dumb_terminal_gets_no_escape_sequence`; `render/test_screen::test_a_pipe_receives_the_exact_text` |
| 39 giant answers | here; `render/test_markdown::test_the_cost_of_a_line_does_not_grow_with_the_text` |
| 41 read-only home | here; `history/test_killed_chats::test_an_unwritable_home_prints_one_warning` |
| 42 second Ctrl-C | here; `terminal/test_terminal::test_ctrl_c_twice_exits_with_130` |
"""  # noqa: E501  (a table)

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swiftchat.chat.history.store import sessions_path
from tests.chat.test_process import Program
from tests.support import fake_engine
from tests.support.terminal import Terminal

EVIL = "e\x1b]52;c;eA==\x07\x9bJ\u202e"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(fake_engine.make_folder(tmp_path / "model"))


def opened(
    program: Program,
    *answers: object,
    options: tuple[str, ...] = (),
    columns: int = 80,
    rows: int = 24,
) -> Terminal:
    command, *args = program.command(*answers, options=options)
    terminal = Terminal(command, args, columns, rows)
    terminal.wait_for(">>>")
    return terminal


def leave(terminal: Terminal) -> int:
    terminal.type("\x04")
    return terminal.wait_end()


def test_escape_sequences_in_names_and_titles_are_sanitized(tmp_path: Path) -> None:
    program = Program(fake_engine.make_folder(tmp_path / EVIL))
    file = tmp_path / "talk.json"
    file.write_text(json.dumps([{"role": "user", "content": EVIL}]))
    imported = [sys.executable, "-m", "swiftchat.chat", "sessions", "import", str(file)]
    assert subprocess.run(imported, capture_output=True).returncode == 0
    terminal = opened(program, "Fine.", options=("-c",))
    terminal.wait_for("e␛]52;c;eA==␇�J�")  # the unanswered question is the draft
    terminal.type("\r")
    terminal.wait_for("Fine.")
    terminal.type("/sessions\r")
    terminal.wait_for("MESSAGES")
    terminal.type("/set temperature \x1b]52\r")
    terminal.type("/model /no/such\x0b\r")
    terminal.wait_for("hint: ")
    assert leave(terminal) == 0
    for attack in (b"\x1b]52", b"\xc2\x9b", "\u202e".encode()):
        assert attack not in terminal.raw


def test_out_of_memory_ends_only_that_turn(program: Program) -> None:
    terminal = opened(program, {"text": "Half an answer", "error": "out of memory"}, "Next.")
    terminal.type("one\r")
    terminal.wait_for("error: out of memory")
    terminal.wait_for("Half an answer")
    terminal.type("/tokens\r")
    terminal.wait_for("assistant: Half an answer")
    terminal.type("two\r")
    terminal.wait_for("Next.")
    assert leave(terminal) == 0


def test_a_full_context_names_the_options_and_restores_the_message(
    program: Program,
) -> None:
    terminal = opened(program, "!")
    # The template needs 19 of the 256 tokens, the answer at least one.
    terminal.type("x" * 237 + "\r")
    text = " ".join(terminal.wait_for("start helps").split())
    assert "has 256 tokens, the context 256" in text
    assert "/compact" in text and "/set ctx_size N" in text and "--overflow drop-oldest" in text
    terminal.wait_for(lambda text: "x" * 70 in text.partition("hint: ")[2])
    terminal.type("\x7f\r")
    terminal.wait_for("!")
    assert leave(terminal) == 0


def test_a_damaged_store_is_replaced_with_a_warning(program: Program) -> None:
    program.run("-p", "x")
    sessions_path().write_bytes(os.urandom(20_000))
    result = program.run("-p", "y")
    assert (result.returncode, result.stdout) == (0, b"An answer.\n")
    assert result.stderr.count(b"was renamed") == 1 and result.stderr.count(b"\n") == 1
    assert program.run("-p", "z").stderr == b""


def test_many_resizes_during_an_answer(program: Program) -> None:
    random.seed(7)
    words = " ".join(f"word{i}" for i in range(200))
    terminal = opened(program, {"text": f"{words}\n\nlast", "delay_s": 0.001}, "Again.")
    terminal.type("go\r")
    for _ in range(40):
        size = random.choice([(1, 1), (10, 20), (3, 2), (60, 200), (24, 80), (2, 400)])
        terminal.process.setwinsize(*size)
        time.sleep(0.02)
    terminal.process.setwinsize(24, 80)
    terminal.screen.resize(24, 80)
    terminal.wait_for("last")
    terminal.type("/new\r")
    terminal.type("again\r")
    terminal.wait_for("Again.")
    assert leave(terminal) == 0


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("```\n" + "some code\n" * 9000, "some code\r?\n.*some code"),
        ("x" * 90_000, "xxxxx"),
        ("|a|b|\n|-|-|\n" + "|one|two|\n" * 9000, "one.*two.*one.*two"),
    ],
)
def test_ctrl_c_stops_a_huge_answer(program: Program, text: str, pattern: str) -> None:
    # A fast machine has printed the whole answer before Ctrl-C, but `end_delay_s` keeps it running.
    terminal = opened(program, {"text": text, "end_delay_s": 120})
    terminal.type("go\r")
    terminal.process.expect(pattern)
    time.sleep(0.3)
    terminal.type("\x03")
    # It takes 0.2 s, or longer on a busy machine, but less than the answer would.
    terminal.process.expect("stopped", timeout=30)
    terminal.type("\x04")
    assert terminal.wait_end() == 0


@pytest.mark.parametrize("hanging", [{"load_s": 60}, {"text": "never", "delay_s": 60}])
def test_a_second_ctrl_c_leaves_a_hanging_chat(program: Program, hanging: object) -> None:
    terminal = opened(program, hanging)
    terminal.type("go\r")
    terminal.wait_for(
        lambda text: text.rstrip().endswith(">>> go")
    )  # the toolbar is gone: the message was sent
    time.sleep(0.5)  # Python may lose an interrupt during an import
    started = time.monotonic()
    terminal.type("\x03")
    terminal.wait_for(lambda text: text.count(">>> go") == 2)
    terminal.type("\x03")
    assert terminal.wait_end() == 130
    assert time.monotonic() - started < 3


_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
_READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'


@pytest.fixture
def read_only(tmp_path: Path) -> list[str]:
    """A command prefix that makes the user's folders read-only."""
    folder = tmp_path / "xdg"
    folder.mkdir()
    command = [*_NAMESPACE, "sh", "-c", _READ_ONLY, "sh", str(folder)]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("no user and mount namespaces here")
    return command


def test_a_chat_works_with_a_read_only_home(program: Program, read_only: list[str]) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[bytes]:
        command = [*read_only, *program.command("An answer.", options=options)]
        return subprocess.run(command, input=b"", capture_output=True)

    program.run("-p", "first question")
    listing = [*read_only, sys.executable, "-m", "swiftchat.chat", "sessions"]
    listed = subprocess.run([*listing, "list"], capture_output=True, text=True)
    assert listed.returncode == 0 and "first question" in listed.stdout
    session_id = listed.stdout.split("\t")[0]
    removed = subprocess.run([*listing, "rm", "-y", session_id], capture_output=True)
    assert removed.returncode == 8 and removed.stderr.startswith(b"error: ")
    result = run("-c", "-p", "and then?")
    assert (result.returncode, result.stdout) == (0, b"An answer.\n")
    assert result.stderr.count(b"not saved") == 1
    assert b"and then?" not in subprocess.run([*listing, "list"], capture_output=True).stdout
    terminal = Terminal(read_only[0], [*read_only[1:], *program.command("Fine.", options=("-c",))])
    terminal.wait_for("continuing: first question")
    terminal.type("more\r")
    terminal.wait_for("Fine.")
    terminal.type("/save name\r")
    terminal.wait_for("error: conversations in")
    assert leave(terminal) == 0
