"""Lines that are typed while an answer comes wait, and are sent when it has ended."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import mcp_server
from tests.support.fake_engine import TOOL_TEMPLATE, make_folder, tool_call
from tests.support.open_terminals import chats
from tests.support.program import Program
from tests.support.terminal import Terminal

Chat = Callable[..., Terminal]
SLOW = {"text": "word word " + " ".join(map(str, range(300))), "delay_s": 0.02}


def begin(terminal: Terminal, waits_for: str = "word word") -> None:
    """Ask a question, and wait until its answer comes."""
    terminal.type("go\r")
    terminal.wait_for(waits_for)


def enter(terminal: Terminal, line: str) -> None:
    """Type a line, then Enter: together they could be a paste."""
    terminal.type_now(line)
    terminal.wait_for(line)
    terminal.type_now("\r")


def stop(terminal: Terminal) -> str:
    """Stop the answer; return the screen with the prompt."""
    terminal.type_now("\x03")
    terminal.wait_for("stopped")
    return terminal.wait_for(lambda _: terminal.is_at_prompt)


def test_lines_wait_in_order_and_are_sent(chat: Chat) -> None:
    terminal = chat({"text": "word " * 30, "delay_s": 0.02}, "Second.", "Third.", rows=40)
    begin(terminal)
    enter(terminal, "what next")
    terminal.wait_for("1 message waits · ↑ edits it")
    enter(terminal, "and then")
    terminal.wait_for("2 messages wait · ↑ edits the last")
    terminal.type_now("not sent")
    terminal.wait_for("Ctrl-C stops\n2 messages wait · ↑ edits the last\n>>> not sent")
    text = terminal.wait_for("Third.\n\n>>> not sent")
    assert ">>> what next\n\nSecond.\n\n>>> and then\n\nThird.\n" in text
    assert "wait ·" not in text
    terminal.type_now("\x15\x1b[A")  # the history has them
    terminal.wait_for("Third.\n\n>>> and then")


def test_up_takes_the_last_line_back(chat: Chat) -> None:
    terminal = chat({"text": "word " * 40, "delay_s": 0.02}, "Second.")
    begin(terminal)
    enter(terminal, "what nxt")
    terminal.wait_for("1 message waits")
    terminal.type_now("\x1b[A")
    text = terminal.wait_for("Ctrl-C stops\n>>> what nxt")
    assert "waits" not in text
    terminal.type_now("\x7f\x7fext")
    enter(terminal, "?")
    assert ">>> what next?\n\nSecond." in terminal.wait_for("Second.")


def test_a_stopped_answer_keeps_what_waits_in_the_prompt(chat: Chat) -> None:
    terminal = chat(SLOW, "Second.")
    begin(terminal)
    enter(terminal, "one")
    enter(terminal, "two")
    terminal.type_now("three")
    terminal.wait_for(">>> three")
    assert ">>> one\n... two\n... three" in stop(terminal)
    terminal.type("\r")
    assert "Second." in terminal.wait_for("Second.")


def test_a_failed_answer_sends_nothing_more(chat: Chat) -> None:
    terminal = chat({"text": "word " * 20, "delay_s": 0.05, "error": "the engine is gone"})
    begin(terminal)
    enter(terminal, "next")
    terminal.wait_for("the engine is gone")
    terminal.wait_for(lambda text: terminal.is_at_prompt and ">>> next" in text)


def test_commands_that_only_print_run_at_once(chat: Chat) -> None:
    terminal = chat(SLOW, "Second.", rows=50)
    begin(terminal)
    enter(terminal, "/set top_k 5")
    terminal.wait_for(">>> /set top_k 5\ntop_k = 5")
    enter(terminal, "/sta")
    terminal.wait_for("did you mean /stats")
    terminal.wait_for("Ctrl-C stops")
    assert "/sta" not in stop(terminal).rpartition("stopped")[2]


def test_other_commands_wait_and_so_does_what_follows_them(chat: Chat) -> None:
    terminal = chat({"text": "word " * 40, "delay_s": 0.02}, rows=50)
    begin(terminal)
    enter(terminal, "/undo")
    terminal.wait_for("1 message waits")
    enter(terminal, "/set top_k 5")
    text = terminal.wait_for("2 messages wait")
    assert "top_k = 5" not in text
    text = terminal.wait_for("top_k = 5")
    assert "0 left" in text.partition(">>> /set")[0]


def test_an_edit_that_waited_is_edited_first(chat: Chat) -> None:
    terminal = chat({"text": "word " * 40, "delay_s": 0.02}, rows=50)
    begin(terminal)
    enter(terminal, "/edit")
    enter(terminal, "behind")
    terminal.wait_for(lambda text: terminal.is_at_prompt and ">>> go\n... behind" in text)


def test_a_line_is_no_answer_to_a_question(tmp_path: Path) -> None:
    server = shlex.join([sys.executable, str(Path(mcp_server.__file__))])
    call = {"text": tool_call("add", a=2, b=3), "delay_s": 0.05}
    program = Program(make_folder(tmp_path / "model", TOOL_TEMPLATE))
    with chats(program) as open_chat:
        script = ({"load_s": 0, "ctx_size_tokens": 20_000}, call, "Refused.", "Sent.")
        terminal = open_chat(*script, options=("--mcp", server))
        begin(terminal, "calling a tool")
        enter(terminal, "yes")
        terminal.wait_for("1 message waits")
        terminal.wait_for("allow this call?")
        terminal.type_now("n\r")
        text = terminal.wait_for(">>> yes\n\nSent.")
        assert "did not allow" in text and "Refused." in text


@pytest.mark.parametrize("columns", [12, 20, 200])
def test_the_rows_fit_any_window(chat: Chat, columns: int) -> None:
    terminal = chat(SLOW, columns=60)
    begin(terminal)
    enter(terminal, "a question")
    terminal.type_now("中文" * 30 + "end")
    terminal.wait_for("end")
    terminal.process.setwinsize(24, columns)
    terminal.screen.resize(24, columns)
    waiting = "1 message waits · ↑ edits it" if columns > 20 else "1 waits"
    text = terminal.wait_for(lambda text: waiting in text and text.rstrip().endswith("end"))
    assert text.count(waiting) == 1


@pytest.mark.parametrize(
    "settings", [{"options": ("--accessible",)}, {"TERM": "dumb"}], ids=["accessible", "dumb"]
)
def test_without_redrawing_each_change_is_told(chat: Chat, settings: dict[str, object]) -> None:
    terminal = chat({"text": "word.\n\n" * 20, "delay_s": 0.02}, "Second.", rows=70, **settings)
    begin(terminal, "word.")
    for line in ("first", "second"):
        terminal.type_now(line)
        terminal.wait_read()
        terminal.type_now("\r")
        terminal.wait_for(f"↑ edits {'it' if line == 'first' else 'the last'}: {line}")
    terminal.type_now("\x1b[A")
    terminal.wait_for("taken back, Enter sends it again: second")
    text = terminal.wait_for("Second.")
    assert "You >>> first\n" in text
    assert b"\x1b[A" not in terminal.raw.partition(b"word.")[2].partition(b"Second.")[0]


def test_without_colors(chat: Chat) -> None:
    terminal = chat(SLOW, NO_COLOR="1")
    begin(terminal)
    enter(terminal, "next")
    terminal.wait_for("1 message waits")
    terminal.type_now("draft")
    terminal.wait_for(">>> draft")
    answer = terminal.raw.partition(b"word")[2]
    assert b"\x1b[1" not in answer and b"\x1b[3" not in answer
