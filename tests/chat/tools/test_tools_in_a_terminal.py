"""Tools of real MCP servers at the prompt, in a pty: questions, Ctrl-C, commands, processes."""

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import fake_engine, mcp_server
from tests.support.fake_engine import TOOL_TEMPLATE, tool_call
from tests.support.open_terminals import terminals
from tests.support.program import Program
from tests.support.terminal import Terminal
from tests.support.worker_processes import command_line

SERVER = shlex.join([sys.executable, str(Path(mcp_server.__file__))])
ADD = tool_call("add", a=2, b=3)
QUESTION = "allow this call? [y/N/a/e]"
Chat = Callable[..., Terminal]


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    folder = fake_engine.make_folder(tmp_path / "model", TOOL_TEMPLATE)
    program = Program(folder)
    with terminals() as open_terminal:

        def open_chat(
            *answers: object, options: tuple[str, ...] = (), server: str = SERVER, **env: str
        ) -> Terminal:
            script = ({"load_s": 0, "ctx_size_tokens": 20_000}, *answers)
            command = program.command(*script, options=("--mcp", server, *options))
            return open_terminal(command, columns=100, **env)

        yield open_chat


def servers_of(terminal: Terminal) -> list[psutil.Process]:
    found = psutil.Process(terminal.process.pid).children(recursive=True)
    return [process for process in found if "mcp_server" in " ".join(command_line(process))]


def wait_gone(processes: list[psutil.Process]) -> None:
    assert processes and not psutil.wait_procs(processes, timeout=60)[1]


@pytest.mark.parametrize(("reply", "result"), [("y", "5"), ("n", "did not allow"), ("", "did not")])
def test_a_call_is_made_only_after_a_yes(chat: Chat, reply: str, result: str) -> None:
    terminal = chat(ADD, "That was it.")
    terminal.type("add\r")
    text = terminal.wait_for(QUESTION)
    assert "mcp_server.add(a=2, b=3)" in text
    terminal.type_now(f"{reply}\r")
    text = terminal.wait_for("That was it.")
    assert result in text.partition("● add(a=2, b=3) → ")[2]


def test_nothing_in_a_call_is_invisible(chat: Chat) -> None:
    hidden = "\U000e0072\u200b\u2066\ufe01\u3164"
    terminal = chat(tool_call("fail", message=f"x{hidden}"), "Done.")
    terminal.type("go\r")
    text = terminal.wait_for(QUESTION)
    shown = r'mcp_server.fail(message="x\udb40\udc72\u200b\u2066\ufe01\u3164")'
    assert shown in text
    terminal.type_now("n\r")
    terminal.wait_for("Done.")


def test_always_allows_a_tool_in_this_conversation_only(chat: Chat) -> None:
    terminal = chat(ADD, "One.", ADD, "Two.", ADD, "Three.")
    terminal.type("add\r")
    terminal.wait_for(QUESTION)
    terminal.type_now("what?\r")
    terminal.wait_for(lambda text: text.count(QUESTION) == 2)
    terminal.type_now("a\r")
    terminal.wait_for("One.")
    terminal.type("again\r")
    assert terminal.wait_for("Two.").count(QUESTION) == 2  # one of them for `what?`
    terminal.type("/new\r")
    terminal.wait_for("a new conversation")
    terminal.type("once more\r")
    assert terminal.wait_for(lambda text: text.count(QUESTION) == 3)


def test_what_was_typed_before_the_question_is_no_answer(chat: Chat) -> None:
    terminal = chat({"text": ADD, "delay_s": 0.05}, "Refused.", "Sent.")
    terminal.type("add\r")
    terminal.wait_for("calling a tool")
    terminal.type_now("y\r")
    terminal.wait_for(QUESTION)
    time.sleep(0.5)
    assert "→" not in terminal.look()
    terminal.type_now("n\r")
    terminal.wait_for("Refused.")
    terminal.wait_for(">>> y\n\nSent.")


def test_ctrl_c_cancels_a_call_and_the_server_goes_on(chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    terminal = chat(
        tool_call("wait", file=str(file)), ADD, "Five.", options=("--allow-tool", "all")
    )
    terminal.type("wait\r")
    deadline = time.monotonic() + 60
    while not file.exists() and time.monotonic() < deadline:
        terminal.look()
    terminal.type_now("\x03")
    terminal.wait_for("The user canceled this call.")
    terminal.type("/continue\r")
    terminal.wait_for("Five.", 60)
    assert psutil.pid_exists(int(file.read_text()))


def test_ctrl_c_at_the_question_cancels_the_call(chat: Chat) -> None:
    terminal = chat(ADD, "Second.")
    terminal.type("add\r")
    terminal.wait_for(QUESTION)
    terminal.type_now("\x03")
    terminal.wait_for("The user canceled this call.")
    terminal.type("go on\r")
    terminal.wait_for("Second.")


def test_escape_sequences_of_a_server_do_not_reach_the_terminal(chat: Chat) -> None:
    terminal = chat(tool_call("hostile"), "Done.", options=("--allow-tool", "all"))
    terminal.type("go\r")
    terminal.wait_for("Done.")
    terminal.type("/tools\r")
    terminal.wait_for("mcp_server.hostile")
    terminal.type("/show\r")
    terminal.wait_for(lambda text: text.count("Done.") == 2)
    assert b"\x1b]52" not in terminal.raw and "\u202e".encode() not in terminal.raw


def test_tools_lists_switches_and_allows(chat: Chat) -> None:
    terminal = chat("Without tools.", ADD, "Five.")
    terminal.type("/tools\r")
    text = terminal.wait_for("tools are on")
    assert "mcp_server: 7 tools" in text and "Add two numbers." in text
    terminal.type("/tools off\r")
    terminal.wait_for("the tools are off")
    terminal.type("hello\r")
    terminal.wait_for("Without tools.")
    terminal.type("/tools on\r")
    terminal.wait_for("7 tools are on")
    terminal.type("/tools allow mcp_server.add\r")
    terminal.wait_for("until the end of this chat")
    terminal.type("add\r")
    assert QUESTION not in terminal.wait_for("Five.")
    terminal.type("/tools allow nothing\r")
    terminal.wait_for("there is no tool 'nothing'")


def test_undo_and_regen_treat_a_question_with_its_tools_as_one_turn(chat: Chat) -> None:
    options = ("--allow-tool", "all")
    terminal = chat(ADD, "Five.", "Again.", options=options)
    terminal.type("add\r")
    terminal.wait_for("Five.")
    terminal.type("/regen\r")
    terminal.wait_for("Again.")
    terminal.type("/undo\r")
    terminal.wait_for("took back 1 turn; 0 left")


def test_a_server_that_ends_is_one_error_and_can_be_started_again(chat: Chat) -> None:
    terminal = chat(tool_call("end"), "It ended.", options=("--allow-tool", "all"))
    terminal.type("end\r")
    text = terminal.wait_for("It ended.")
    assert text.count("error: the MCP server mcp_server has ended") == 1
    terminal.type("/tools\r")
    terminal.wait_for("mcp_server: does not run")
    terminal.type("/tools on\r")
    terminal.wait_for("7 tools are on", 60)


@pytest.mark.parametrize("how", ["/bye\r", "SIGTERM", "SIGKILL"])
def test_servers_end_with_the_program(chat: Chat, how: str, tmp_path: Path) -> None:
    """Also one that ignores the end of its input and SIGTERM."""
    terminal = chat(server=f"{SERVER} deaf {tmp_path / 'pid'}")
    processes = servers_of(terminal)
    if how.startswith("SIG"):
        os.kill(terminal.process.pid, {"SIGTERM": 15, "SIGKILL": 9}[how])
    else:
        terminal.type(how)
    wait_gone(processes)


def test_a_dumb_terminal_asks_too(chat: Chat) -> None:
    terminal = chat(ADD, "Five.", TERM="dumb")
    terminal.type("add\r")
    terminal.wait_for(QUESTION)
    terminal.type_now("y\r")
    terminal.wait_for("Five.")
    assert b"\x1b" not in terminal.raw
