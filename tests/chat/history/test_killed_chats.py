"""Saved conversations of chats in a terminal that were killed, hung up or stopped."""

import signal
from collections.abc import Callable

import pytest

from swiftchat.chat.history.store import SessionStore, sessions_path
from tests.chat.test_process import SLOW
from tests.chat.test_process import chat as chat
from tests.chat.test_process import program as program
from tests.support.terminal import Terminal

Open = Callable[..., Terminal]


def stored_messages() -> list[tuple[str, str, str | None]]:
    with SessionStore(sessions_path(), print) as store:
        (row,) = store.recent()
        path = store.load(row["id"]).messages
    return [(message.role, message.content, message.finish_reason) for message in path]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, None)]
)
def test_a_killed_chat_continues_with_its_partial_answer(
    chat: Open, number: int, code: int | None
) -> None:
    terminal = chat(SLOW)
    terminal.type("tell me\r")
    terminal.wait_for(lambda text: text.count("slow answer") > 3)
    terminal.process.kill(number)
    assert terminal.wait_end() == code
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


def test_closing_the_terminal_is_a_hangup(chat: Open) -> None:
    terminal = chat(SLOW)
    terminal.type("tell me\r")
    terminal.wait_for("slow answer")
    # The `close` method of the process would send signals itself.
    terminal.process.ptyproc.fileobj.close()
    terminal.process.closed = terminal.process.ptyproc.closed = True
    assert terminal.process.wait() == 129
    assert stored_messages()[1][1].startswith("A slow answer")


def test_ctrl_c_marks_the_answer_as_interrupted(chat: Open) -> None:
    terminal = chat(SLOW)
    terminal.type("tell me\r")
    terminal.wait_for("slow answer")
    terminal.type("\x03")
    terminal.wait_for("stopped")
    terminal.wait_for(lambda text: text.count(">>>") == 2)
    assert stored_messages()[1][2] == "interrupt"


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
    terminal.wait_for("/help TOPIC")
    terminal.type("\x04")
    assert terminal.wait_end() == 0
