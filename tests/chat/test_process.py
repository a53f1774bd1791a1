"""swiftchat as a process with the fake engine: pipes, streams, signals, the terminal."""

import os
import re
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.slash.registry import run
from swiftchat.engine.api.protocol import EngineInfo
from swiftchat.errors import DeviceError
from tests.support import fake_engine
from tests.support.open_terminals import terminals
from tests.support.program import Program
from tests.support.terminal import Terminal

# It lasts longer than a busy machine needs to read the keys that stop it.
SLOW = {"text": "A slow answer that goes on. " * 400, "delay_s": 0.01}


def test_tokens_are_flushed_one_by_one_without_escapes(program: Program) -> None:
    slow = {"text": "abcdef", "delay_s": 0.3}
    process = subprocess.Popen(
        program.command(slow, options=("-p", "x")),
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 100) == b"a"
    assert process.stdout.read() == b"bcdef\n" and process.wait(60) == 0


@pytest.mark.parametrize("options", [(), ("--raw",)])
def test_warnings_come_after_the_whole_answer(program: Program, options: tuple[str, ...]) -> None:
    """Rendered as it is by default, and as plain text."""
    answer = {"text": "one two three four", "limit": 9}
    command = program.command(answer, options=("-p", "x"))
    with terminals() as open_terminal:
        terminal = open_terminal([*command, *options], waits=False)
        text = terminal.wait_for(lambda shown: "--ctx-size" in shown and "one two t" in shown)
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    assert lines[0] == "one two t" and lines[1].startswith("warning: answer ended at the context")


def test_options_before_a_command(program: Program) -> None:
    assert program.run("chat", "-p", "x").stdout == b"An answer.\n"  # -m precedes the command
    result = program.run("-p", "x", "list")
    lines = result.stderr.decode().splitlines()
    assert result.returncode == 2 and lines[0].startswith("error: --model is not an option of list")
    assert lines[1].startswith("hint: ") and len(lines) == 2
    misplaced = program.run("batch", "in.jsonl")
    error, hint = misplaced.stderr.decode().splitlines()
    assert (
        misplaced.returncode == 2 and error == "error: --model stands before batch, not behind it"
    )
    assert hint == "hint: options follow the command; swiftchat batch --help lists them"


@pytest.mark.parametrize("options", [("-i",), ("-i", "-p", "x"), ("--json", "-i", "-p", "x")])
def test_interactive_needs_a_terminal(program: Program, options: tuple[str, ...]) -> None:
    result = program.run(*options)
    assert result.returncode == 2 and result.stdout == b""
    assert b"needs a terminal" in result.stderr


def test_a_missing_prompt_is_an_error_without_a_terminal(program: Program) -> None:
    command = " ".join(f"'{part}'" for part in program.command("An answer."))
    process = pexpect.spawn("bash", ["-c", f"{command} | cat; exit ${{PIPESTATUS[0]}}"], timeout=60)
    process.expect("no prompt was given")
    process.expect(pexpect.EOF)
    process.close()
    assert process.exitstatus == 2


def test_interactive_continues_after_the_first_answer(chat: Callable[..., Terminal]) -> None:
    terminal = chat("First answer.", "Second answer.", options=("-p", "one", "-i"))
    assert "First answer." in terminal.look()
    terminal.type("two\r")
    text = terminal.wait_for("Second answer.")
    assert text.count("First answer.") == 1 and "continuing" not in text


def test_files_precede_the_first_message(chat: Callable[..., Terminal], tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("n" * 300)
    terminal = chat("Read.", options=("-f", str(tmp_path / "notes")))
    # The path may have any length, so the line may break anywhere.
    assert "isattachedtothefirstmessage" in "".join(terminal.look().split())
    terminal.type("sum up\r")
    terminal.wait_for("the context 256")  # the file was sent with the message
    assert "tokens, the context" in terminal.look()


def test_the_terminal_echoes_after_the_chat(program: Program) -> None:
    command = " ".join(f"'{part}'" for part in program.command(SLOW))
    terminal = Terminal("bash", ["-c", f"{command}; echo code $?; read -r line; echo got:$line"])
    terminal.wait_for(">>>")
    terminal.type("go\r")
    terminal.wait_for("slow answer")
    terminal.type("\x03")
    terminal.wait_for("stopped")
    terminal.type("\x03")
    terminal.wait_for("code 130")
    assert termios.tcgetattr(terminal.process.child_fd)[3] & termios.ECHO
    terminal.type_now("typed\r")
    terminal.wait_for("got:typed")


def test_ctrl_c_before_the_first_word_restores_the_message(
    chat: Callable[..., Terminal],
) -> None:
    terminal = chat("Ready.", {"text": "never", "delay_s": 30}, "Answered.")
    terminal.type("hi\r")  # its answer shows that the tokenizer is loaded
    terminal.wait_for("Ready.")
    terminal.type("precious words\r")
    # The message was sent when the toolbar below it is gone.
    terminal.wait_for(lambda text: text.rstrip().endswith(">>> precious words"))
    time.sleep(0.3)
    terminal.type("\x03")
    terminal.wait_for(lambda text: text.count("precious words") == 2)
    terminal.type("\r")
    text = terminal.wait_for("Answered.")
    assert "stopped" not in text


def test_input_during_an_answer_is_hidden_until_the_prompt(chat: Callable[..., Terminal]) -> None:
    terminal = chat({"text": "0123456789" * 10, "delay_s": 0.01}, "Second.")
    terminal.type("go\r")
    terminal.wait_for("0123")
    terminal.type_now("typed ahead\r")
    text = terminal.wait_for(">>> typed ahead")
    assert "0123456789" * 8 in text and "Second." not in text
    terminal.type("\r")
    terminal.wait_for("Second.")


def test_pasted_code_is_a_message(chat: Callable[..., Terminal]) -> None:
    terminal = chat("Code.", "Slash.", "Path.")
    terminal.type("\x1b[200~/* add */\nint add(int a);\x1b[201~\r")
    terminal.wait_for("Code.")
    terminal.type("//help is a command\r")
    terminal.wait_for("Slash.")
    terminal.type("/etc/passwd\r")
    terminal.wait_for("Path.")
    terminal.type("/" + "x" * 300 + "\r")
    terminal.wait_for("unknown command")


def test_no_color_is_honored(chat: Callable[..., Terminal]) -> None:
    terminal = chat("Plain.", NO_COLOR="1")
    terminal.type("x\r")
    terminal.wait_for("Plain.")
    codes = {
        code
        for codes in re.findall(rb"\x1b\[([0-9;]*)m", terminal.raw)
        for code in codes.split(b";")
        if code
    }
    assert not {code for code in codes if len(code) > 1}, "30 and up are colors"


class FailingEngine(fake_engine.FakeEngine):
    """Fails to load the first time."""

    def wait_ready(self, on_progress: object = None) -> EngineInfo:
        if self.num_starts == 1:
            raise DeviceError("killed while loading")
        return super().wait_ready(on_progress)


def test_a_loading_error_is_raised_and_loading_retried(program: Program) -> None:
    engine = FailingEngine([])
    chat_model = ChatModel(program.folder, ChatConfig(), engine.start)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="while loading"):
        chat_model.wait_ready()
    assert engine.num_starts == 1
    assert chat_model.wait_ready().device == "fake" and engine.num_starts == 2


def test_drop_oldest_leaves_room_for_an_answer(program: Program) -> None:
    engine = fake_engine.FakeEngine(["ok"], ctx_size_tokens=200)
    config = ChatConfig(overflow="drop-oldest")
    chat_model = ChatModel(program.folder, config, engine.start)  # type: ignore[arg-type]
    conversation = Conversation("S")
    for _ in range(3):
        conversation.add("user", "q" * 10)
        conversation.add("assistant", "a" * 10)
    conversation.add("user", "last")
    dropped: list[int] = []
    list(chat_model.answer(conversation, dropped.append))
    assert dropped and len(engine.prompts[0]) <= 150
    assert "system\nS" in engine.prompt_text() and "last" in engine.prompt_text()


class FakeState:
    """The part of the chat state that `/system` uses."""

    def __init__(self) -> None:
        self.conversation = Conversation("Be brief.")


def test_the_system_prompt_can_be_removed() -> None:
    state = FakeState()
    run(state, '/system ""')  # type: ignore[arg-type]
    assert state.conversation.template_messages() == []


def test_a_new_seed_replaces_a_fixed_one(program: Program) -> None:
    engine = fake_engine.FakeEngine(["one", "two"])
    chat_model = ChatModel(program.folder, ChatConfig(seed=5), engine.start)  # type: ignore[arg-type]
    conversation = Conversation()
    conversation.add("user", "x")
    list(chat_model.answer(conversation, lambda n: None))
    list(chat_model.answer(conversation, lambda n: None, new_seed=True))
    assert [params.seed for params in engine.params] == [5, None]
