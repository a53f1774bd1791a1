"""`swiftchat do`: what is shown, asked and run; pipes, exit codes, commands that hide something."""

import json
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.support import fake_engine
from tests.support.program import Program, assert_error
from tests.support.terminal import Terminal

ANSWER = json.dumps({"command": "find . -size +100M", "explanation": "It lists large files."})
ENGINE = {"load_s": 0, "ctx_size_tokens": 4096}


class Do:
    """Runs `do` with a proposed command."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._program = Program(Path("-"))
        self.opened: list[Terminal] = []

    def options(self, *more: str) -> tuple[str, ...]:
        return ("do", "-m", self._folder, *more, "find", "big", "files")

    def terminal(self, command: str, explanation: str = "It prints a word.") -> Terminal:
        answer = json.dumps({"command": command, "explanation": explanation})
        program, *args = self._program.command(ENGINE, answer, options=self.options())
        self.opened.append(Terminal(program, args))
        return self.opened[-1]


@pytest.fixture
def do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Do]:
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.chdir(tmp_path)
    do = Do(fake_engine.make_folder(tmp_path / "model", max_position_embeddings=4096))
    yield do
    for terminal in do.opened:
        terminal.process.close(force=True)


def ended(terminal: Terminal) -> int:
    """Wait for the end of the program and return its exit code."""
    terminal.process.expect_exact([pexpect.EOF])
    terminal.process.wait()
    return int(terminal.process.exitstatus)


def test_a_pipe_gets_the_command_only_with_print(do: Do, tmp_path: Path) -> None:
    program, options = Program(Path("-")), do.options("--print")
    record = {"text": ANSWER, "records": str(tmp_path / "ids")}
    done = program.run(*options, answers=(ENGINE, record))
    assert (done.returncode, done.stdout) == (0, b"find . -size +100M\n"), done.stderr
    prompt = fake_engine.text_of(json.loads((tmp_path / "ids").read_text()))
    assert "for the shell sh on " in prompt and "find big files" in prompt
    assert_error(program.run(*do.options(), answers=(ENGINE, ANSWER)), 2, "only after a y")
    cut = {"text": ANSWER[:20], "limit": 20}
    assert_error(program.run(*options, answers=(ENGINE, cut)), 5, "is not complete after 20 tokens")


@pytest.mark.parametrize(("key", "code"), [("y", 3), ("n", 130), ("", 130), ("\x04", 130)])
def test_only_y_runs_the_command(do: Do, tmp_path: Path, key: str, code: int) -> None:
    terminal = do.terminal("touch ran; echo wor''d; exit 3")
    terminal.process.expect_exact("touch ran; echo wor''d; exit 3\r\n")
    terminal.process.expect_exact("It prints a word.\r\n")
    terminal.process.expect_exact("run it? [y/N/e] ")
    terminal.type_now(key if key == "\x04" else f"{key}\r")
    if key == "y":
        terminal.process.expect_exact("word")
        terminal.process.expect_exact("exit status 3")
    assert ended(terminal) == code
    assert (tmp_path / "ran").exists() == (key == "y")


def test_other_words_are_no_answer_and_e_edits(do: Do, tmp_path: Path) -> None:
    terminal = do.terminal("touch one")
    terminal.process.expect_exact("run it? [y/N/e] ")
    terminal.type_now("perhaps\r")
    terminal.process.expect_exact("y = run it, n = do not, e = edit it first")
    terminal.process.expect_exact("run it? [y/N/e] ")
    terminal.type_now("e\r")
    terminal.process.expect_exact("touch one")
    terminal.type_now("\x7f\x7f\x7ftwo\r")
    terminal.process.expect_exact("run it? [y/N/e] ")
    assert not (tmp_path / "two").exists(), "an edited command is asked for again"
    terminal.type_now("y\r")
    assert ended(terminal) == 0
    assert (tmp_path / "two").exists() and not (tmp_path / "one").exists()


def test_nothing_in_a_command_is_invisible(do: Do, tmp_path: Path) -> None:
    terminal = do.terminal("echo a\u202eb\u200b; touch\u00a0x", "It\u001b[8m prints.")
    terminal.process.expect_exact("echo a\\u202eb\\u200b; touch\\u00a0x\r\n")
    terminal.process.expect_exact("It\\u001b[8m prints.\r\n")
    terminal.process.expect_exact("run it? [y/N/e] ")
    terminal.type_now("n\r")
    assert ended(terminal) == 130


def test_keys_that_were_typed_before_are_no_answer(do: Do, tmp_path: Path) -> None:
    answer = {"text": ANSWER.replace("find . -size +100M", "touch ran"), "delay_s": 0.02}
    program, *args = Program(Path("-")).command(ENGINE, answer, options=do.options())
    terminal = Terminal(program, args)
    do.opened.append(terminal)
    terminal.process.expect_exact("looking for a command")
    terminal.type_now("y\r")
    terminal.process.expect_exact("run it? [y/N/e] ")
    terminal.type_now("n\r")
    assert ended(terminal) == 130 and not (tmp_path / "ran").exists()
