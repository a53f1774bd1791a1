"""Saved conversations of chats in a terminal that were killed, hung up or stopped."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftchat.chat.history.store import sessions_path
from tests.chat.test_process import SLOW
from tests.support import fake_engine
from tests.support.sessions import stored_messages
from tests.support.terminal import Terminal

Open = Callable[..., Terminal]


@pytest.mark.fault(5)
def test_a_killed_chat_continues_with_its_partial_answer(chat: Open) -> None:
    terminal = chat(SLOW)
    terminal.type("tell me\r")
    terminal.wait_for(lambda text: text.count("slow answer") > 3)
    terminal.process.kill(signal.SIGKILL)
    assert terminal.wait_end() is None
    question, (role, content, reason) = stored_messages()
    assert question == ("user", "tell me", None)
    assert (role, reason) == ("assistant", None) and content.count("slow") > 1
    assert SLOW["text"].startswith(content)  # type: ignore[attr-defined]

    terminal = chat(" It ends.", options=("-c",))
    text = terminal.wait_for("/continue extends it")
    assert "continuing: tell me" in text and ">>> tell me" in text and "slow answer" in text
    terminal.type("/continue\r")
    terminal.wait_for("It ends.")
    terminal.type("\x04")
    assert terminal.wait_end() == 0
    assert stored_messages()[1] == ("assistant", f"{content} It ends.", "stop")


@pytest.mark.fault(2)
def test_an_answer_is_saved_before_the_prompt_is_back(chat: Open) -> None:
    """`python -m tests.kills` kills at any moment."""
    terminal = chat("First.", "Second.")
    for number, question in enumerate(("one", "two"), 1):
        terminal.type(f"{question}\r")
        terminal.wait_for(lambda text, number=number: text.count(">>>") == number + 1, 60)
    terminal.process.kill(signal.SIGKILL)
    terminal.wait_end()
    assert stored_messages() == [
        ("user", "one", None),
        ("assistant", "First.", "stop"),
        ("user", "two", None),
        ("assistant", "Second.", "stop"),
    ]


def test_edit_puts_the_question_into_the_input_line(chat: Open) -> None:
    terminal = chat("First.", "Second.")
    terminal.type("one\r")
    terminal.wait_for("First.")
    terminal.type("/edit\r")
    terminal.wait_for(lambda text: text.count(">>> one") == 2)
    terminal.type(" more\r")
    terminal.wait_for(lambda text: text.rpartition("Second.")[2].count(">>>") == 1)
    assert [text for _, text, _ in stored_messages()] == ["one more", "Second."]
    terminal.type("/branches\r")
    terminal.wait_for("user: one")


def test_ctrl_c_stops_a_shell_command_but_not_the_chat(chat: Open) -> None:
    terminal = chat("Fine.")
    terminal.type("!echo begun; sleep 30; echo never\r")
    terminal.wait_for(lambda text: "\nbegun" in text)
    terminal.type("\x03")
    terminal.wait_for("interrupted")
    terminal.type("hi\r")
    text = terminal.wait_for("Fine.")
    assert "\nnever" not in text


@pytest.mark.fault(41)
def test_an_unwritable_home_prints_one_warning(chat: Open) -> None:
    sessions_path().parent.parent.mkdir(parents=True)
    sessions_path().parent.write_text("in the way")
    terminal = chat("First.", "Second.", columns=200)
    terminal.type("one\r")
    terminal.wait_for("First.")
    terminal.type("two\r")
    text = terminal.wait_for("Second.")
    assert text.count("is not saved") == 1
    terminal.type("/save it\r")
    terminal.wait_for("error: conversations in")


@pytest.mark.parametrize("settings", [{"TERM": "dumb"}, {"columns": 20, "rows": 10}])
def test_sessions_on_dumb_and_small_terminals(chat: Open, settings: dict[str, object]) -> None:
    terminal = chat("A.", **settings)
    terminal.type("世界 and more than twenty columns\r")
    terminal.wait_for("A.")
    terminal.type("/sessions\r")
    terminal.wait_for("MESSAGES" if "TERM" in settings else "ID")
    terminal.type("/help\r")
    terminal.wait_for("config\n")  # the end of the topics; their beginning has scrolled away
    terminal.type("\x04")
    assert terminal.wait_end() == 0


@pytest.mark.fault(11)
def test_ctrl_c_keeps_the_beginning_of_the_answer(chat: Open, tmp_path: Path) -> None:
    """The next turn has the question and the beginning in its prompt."""
    record = tmp_path / "record"
    terminal = chat(SLOW, {"text": "Next.", "records": str(record)})
    terminal.type("tell me\r")
    terminal.wait_for("slow answer", 60)
    terminal.type_now("\x03")
    terminal.wait_for("stopped", 60)
    terminal.wait_for(lambda text: terminal.is_at_prompt, 60)
    question, (role, content, reason) = stored_messages()
    assert question == ("user", "tell me", None)
    assert (role, reason) == ("assistant", "interrupt")
    assert "slow answer" in content and str(SLOW["text"]).startswith(content)
    terminal.type("and then?\r")
    terminal.wait_for("Next.", 60)
    turns = [("user", "tell me"), ("assistant", content), ("user", "and then?")]
    expected = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    prompt = fake_engine.text_of(json.loads(record.read_text()))
    assert prompt == f"{expected}<|im_start|>assistant\n"
    terminal.type("\x04")
    assert terminal.wait_end() == 0
    assert [reason for _, _, reason in stored_messages()] == [None, "interrupt", None, "stop"]
