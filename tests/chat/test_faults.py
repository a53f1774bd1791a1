"""The faults that the chat must survive, each by the program itself in a terminal or pipe.

What is tested where, of the list of faults that the program has to meet:

| fault | tests |
|---|---|
| 2 killed while saving | `test_chat_sessions::test_500_kills_while_saving_lose_nothing` |
| 3 control characters | here; `test_chat_terminal::test_escapes_in_an_answer_are_shown_not_obeyed`; `test_chat_markdown::test_control_characters_at_every_split_point` |
| 11 Ctrl-C in an answer | `test_chat_process::test_ctrl_c_stops_within_200_ms_and_keeps_the_part`; `test_chat_kept::test_a_stopped_answer_is_marked` |
| 14 control tokens in text | `test_chat_text::test_the_template_puts_no_control_id_into_what_users_write`; `test_tokenizer_template` |
| 17 out of memory in an answer | here |
| 18 context full | here; `test_chat_text::test_a_full_context_is_an_error_and_never_a_silent_cut` |
| 26 two writers | `test_chat_sessions::test_two_writers_of_one_conversation_make_branches` |
| 27 damaged database | here; `test_chat_sessions::test_a_damaged_file_is_set_aside_and_told` |
| 28 modes of files | `test_chat_sessions::test_the_file_is_the_users_alone_whatever_the_umask`; `test_chat_process::test_the_history_file_is_private` |
| 35 closed stdout | `test_chat_process::test_a_reader_that_leaves_ends_it_silently_with_141` |
| 36 SIGHUP, SIGTERM | `test_chat_kept::test_what_was_said_is_kept_and_goes_on`, `::test_the_terminal_that_is_closed_is_a_hangup` |
| 37 poor locales, odd bytes | `test_chat_process::test_an_answer_in_a_poor_encoding_is_replaced`, `::test_undecodable_arguments_and_stdin_are_no_crash` |
| 38 any size, dumb, no tty | here; `test_chat_process::test_any_size_of_terminal`, `::test_a_dumb_terminal_gets_no_escape`; `test_chat_render_terminal::test_pipes_get_the_answers_bytes` |
| 39 giant answers | here; `test_chat_markdown::test_the_work_for_a_line_does_not_grow` |
| 41 read-only home | here; `test_chat_kept::test_a_home_that_cannot_be_written_is_told_once` |
| 42 second Ctrl-C | here; `test_chat_terminal::test_ctrl_c_twice_leaves_with_130` |
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
from tests.chat.terminal.test_terminal import Terminal
from tests.chat.test_process import Program
from tests.support import fake_engine

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


def left(terminal: Terminal) -> int:
    terminal.type("\x04")
    return terminal.wait_end()


def test_names_and_titles_are_shown_not_obeyed(tmp_path: Path) -> None:
    program = Program(fake_engine.make_folder(tmp_path / EVIL))
    file = tmp_path / "talk.json"
    file.write_text(json.dumps([{"role": "user", "content": EVIL}]))
    imported = [sys.executable, "-m", "swiftchat.chat", "sessions", "import", str(file)]
    assert subprocess.run(imported, capture_output=True).returncode == 0
    terminal = opened(program, "Fine.", options=("-c",))
    terminal.wait_for("e␛]52;c;eA==␇�J�")  # the question that was never answered, to be sent
    terminal.type("\r")
    terminal.wait_for("Fine.")
    terminal.type("/sessions\r")
    terminal.wait_for("MESSAGES")
    terminal.type("/set temperature \x1b]52\r")
    terminal.type("/model /no/such\x0b\r")
    terminal.wait_for("hint: ")
    assert left(terminal) == 0
    for attack in (b"\x1b]52", b"\xc2\x9b", "\u202e".encode()):
        assert attack not in terminal.raw


def test_out_of_memory_in_an_answer_ends_that_turn_alone(program: Program) -> None:
    terminal = opened(program, {"text": "Half an answer", "error": "out of memory"}, "Next.")
    terminal.type("one\r")
    terminal.wait_for("error: out of memory")
    terminal.wait_for("Half an answer")
    terminal.type("/tokens\r")
    terminal.wait_for("assistant: Half an answer")
    terminal.type("two\r")
    terminal.wait_for("Next.")
    assert left(terminal) == 0


def test_a_full_context_is_told_with_the_choices_and_the_message_comes_back(
    program: Program,
) -> None:
    terminal = opened(program, "!")
    # Of the 256 tokens the template takes 19, and one must be left for the answer.
    terminal.type("x" * 237 + "\r")
    text = "".join(terminal.wait_for("room, too").split())  # lines end anywhere
    assert "has256tokens,thecontext256" in text
    assert "/compact" in text and "--ctx-size" in text and "--overflowdrop-oldest" in text
    terminal.wait_for(lambda text: "x" * 70 in text.partition("hint: ")[2])
    terminal.type("\x7f\r")
    terminal.wait_for("!")
    assert left(terminal) == 0


def test_a_damaged_database_is_told_and_the_chat_goes_on(program: Program) -> None:
    program.run("-p", "x")
    sessions_path().write_bytes(os.urandom(20_000))
    result = program.run("-p", "y")
    assert (result.returncode, result.stdout) == (0, b"An answer.\n")
    assert result.stderr.count(b"was renamed") == 1 and result.stderr.count(b"\n") == 1
    assert program.run("-p", "z").stderr == b""


def test_a_storm_of_resizes(program: Program) -> None:
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
    assert left(terminal) == 0


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("```\n" + "some code\n" * 9000, "some code\r?\n.*some code"),
        ("x" * 90_000, "xxxxx"),
        ("|a|b|\n|-|-|\n" + "|one|two|\n" * 9000, "one.*two.*one.*two"),
    ],
)
def test_ctrl_c_works_in_giant_answers(program: Program, text: str, seen: str) -> None:
    # A fast machine has written all of it when Ctrl-C comes, but not that it has ended.
    terminal = opened(program, {"text": text, "end_delay_s": 120})
    terminal.type("go\r")
    terminal.process.expect(seen)
    time.sleep(0.3)
    terminal.type("\x03")
    # Long before the answer would have ended, however busy the machine is; 0.2 s where it is not.
    terminal.process.expect("stopped", timeout=30)
    terminal.type("\x04")
    assert terminal.wait_end() == 0


@pytest.mark.parametrize("hanging", [{"load_s": 60}, {"text": "never", "delay_s": 60}])
def test_a_second_ctrl_c_leaves_whatever_hangs(program: Program, hanging: object) -> None:
    terminal = opened(program, hanging)
    terminal.type("go\r")
    terminal.wait_for(lambda text: text.rstrip().endswith(">>> go"))  # sent: no status bar below
    time.sleep(0.5)  # Python loses an interrupt that comes in the middle of an import
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
    """What runs a command where nothing in the user's folders can be written."""
    folder = tmp_path / "xdg"
    folder.mkdir()
    command = [*_NAMESPACE, "sh", "-c", _READ_ONLY, "sh", str(folder)]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("no user and mount namespaces here")
    return command


def test_a_read_only_home_can_be_read_and_chatted_in(
    program: Program, read_only: list[str]
) -> None:
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
    assert left(terminal) == 0
