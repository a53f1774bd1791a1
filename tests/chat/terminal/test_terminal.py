"""Conversations in a pty, checked on an emulated screen."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_engine
from tests.support.open_terminals import terminals
from tests.support.terminal import Terminal

SCRIPT = Path(fake_engine.__file__)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fake_engine.make_folder(tmp_path / "model")


@pytest.fixture
def chat(folder: Path) -> Iterator[Callable[..., Terminal]]:
    with terminals() as open_terminal:

        def open_chat(*answers: object, **settings: Any) -> Terminal:
            command = [sys.executable, str(SCRIPT), str(folder), json.dumps(answers)]
            return open_terminal(command, **settings)

        yield open_chat


def test_two_turns_and_ctrl_d(chat: Callable[..., Terminal]) -> None:
    terminal = chat("First answer.", "Second answer.")
    terminal.type("one\r")
    terminal.wait_for("First answer.")
    terminal.type("two\r")
    text = terminal.wait_for("Second answer.")
    assert text.count("First answer.") == 1
    terminal.type("\x04")
    assert terminal.wait_end() == 0


@pytest.mark.parametrize("word", ["/bye", "/exit", "/quit"])
def test_exit_commands(chat: Callable[..., Terminal], word: str) -> None:
    terminal = chat()
    terminal.type(f"{word}\r")
    assert terminal.wait_end() == 0


@pytest.mark.fault(11)
@pytest.mark.parametrize("key", ["\x03", "\x1b[99;5u"])  # of a legacy terminal, and of kitty
def test_ctrl_c_during_an_answer_keeps_typed_text(chat: Callable[..., Terminal], key: str) -> None:
    terminal = chat({"text": "x" * 5000, "delay_s": 0.02}, "Second answer.")
    terminal.type("long\r")
    terminal.wait_for("xxxxx")
    terminal.type("typed meanwhile")
    terminal.wait_read()
    terminal.type(key)
    terminal.wait_for("stopped")
    terminal.wait_for(">>> typed meanwhile")
    terminal.type("\r")
    terminal.wait_for("Second answer.")


def test_ctrl_c_twice_exits_with_130(chat: Callable[..., Terminal]) -> None:
    terminal = chat()
    terminal.type("\x03")
    terminal.wait_for("Ctrl-D or /bye")
    terminal.type("\x03")
    assert terminal.wait_end() == 130


def test_ctrl_c_clears_the_line(chat: Callable[..., Terminal]) -> None:
    terminal = chat("Answer.")
    terminal.type("unwanted")
    terminal.wait_for("unwanted")
    terminal.type("\x03")
    terminal.wait_for(lambda text: "unwanted" not in text)
    terminal.type("wanted\r")
    terminal.wait_for("Answer.")


def test_pasting_newlines_does_not_send(chat: Callable[..., Terminal]) -> None:
    terminal = chat("Got it.")
    terminal.type("\x1b[200~line one\nline two\x1b[201~")
    text = terminal.wait_for("line two")
    assert "... line two" in text and "Got it." not in text
    terminal.type("\r")
    terminal.wait_for("Got it.")


@pytest.mark.parametrize("keys", ["\x1b\r", "\n", "\\\r", "\x1b[13;2u", "\x1b[I\x1b[27;2;13~"])
def test_newline_keys_do_not_send(chat: Callable[..., Terminal], keys: str) -> None:
    terminal = chat("Sent.")
    terminal.type(f"first{keys}second")
    text = terminal.wait_for("second")
    assert "Sent." not in text
    terminal.type("\r")
    terminal.wait_for("Sent.")


def test_triple_quoted_block(chat: Callable[..., Terminal]) -> None:
    terminal = chat("Block read.")
    terminal.type('"""\r')
    terminal.wait_for("...")
    terminal.type("inside\r")
    text = terminal.wait_for("inside")
    assert "Block read." not in text
    terminal.type('"""\r')
    terminal.wait_for("Block read.")


def test_known_and_unknown_commands(chat: Callable[..., Terminal]) -> None:
    terminal = chat("Hello.", "Hello again.")
    terminal.type("/clera\r")
    terminal.wait_for("unknown command")
    terminal.wait_for("did you mean /clear")
    terminal.type("/set temperature 0.1\r")
    terminal.wait_for("temperature = 0.1")
    terminal.type("/set parameter top_k 5\r")
    terminal.wait_for("top_k = 5")
    terminal.type("/set temperature hot\r")
    terminal.wait_for("must be a number")
    terminal.type("hi\r")
    terminal.wait_for("Hello.")
    terminal.type("/regen\r")
    terminal.wait_for("Hello again.")
    terminal.type("/stats\r")
    text = terminal.wait_for("cache for")
    assert "cache hits" in text and "context" in text and "free blocks" not in text
    terminal.type("/stats all\r")
    terminal.wait_for("free blocks")
    terminal.type("/undo\r")
    terminal.wait_for("0 left")
    terminal.type("/regen\r")
    terminal.wait_for("no message to answer again")
    terminal.type("/help\r")
    terminal.wait_for("Ctrl-X Ctrl-E")


def test_an_engine_failure_restores_the_typed_message(chat: Callable[..., Terminal]) -> None:
    terminal = chat({"text": "", "error": "the engine process ended: signal 9"}, "Recovered.")
    terminal.type("precious words\r")
    terminal.wait_for("signal 9")
    terminal.wait_for(lambda text: text.count("precious words") == 2)
    terminal.type("\r")
    terminal.wait_for("Recovered.")


def test_wide_characters_on_a_narrow_screen(chat: Callable[..., Terminal]) -> None:
    terminal = chat("你好，世界 👋 done", columns=20)
    terminal.type("嗨\r")
    terminal.wait_for(lambda text: "done" in text and "世界" in text.replace(" ", ""))


def test_a_dumb_terminal(chat: Callable[..., Terminal]) -> None:
    terminal = chat("Plain.", TERM="dumb")
    terminal.type("x\r")
    terminal.wait_for("Plain.")


def test_the_real_model_in_a_terminal(smollm2: Path) -> None:
    terminal = Terminal(sys.executable, ["-m", "swiftchat.chat", "-m", str(smollm2), "--temp", "0"])
    terminal.wait_for(">>>")
    terminal.type("What is the capital of France?\r")
    terminal.wait_for("Paris", seconds=60)
    terminal.type("And of Italy?\r")
    terminal.wait_for("Rome", seconds=60)
    terminal.type("Write a story of two thousand words.\r")
    # It stands below the first text: before that the question would come back.
    terminal.wait_for("tok/s · Ctrl-C stops", 60)
    terminal.type("\x03")
    terminal.wait_for("stopped")
    terminal.type("\x04")
    assert terminal.wait_end() == 0
