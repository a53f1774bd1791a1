"""Built-in tools at the prompt: diffs, questions, changes by the user, Ctrl-C, what is saved."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import fake_engine
from tests.support.fake_engine import TOOL_TEMPLATE, tool_call
from tests.support.open_terminals import terminals
from tests.support.program import Program
from tests.support.terminal import Terminal
from tests.support.worker_processes import wait_until

QUESTION = "allow this call? [y/N/a/e]"
Chat = Callable[..., Terminal]


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    """Return a function that opens a chat, with other arguments, in a folder with `a.txt`."""
    program = Program(fake_engine.make_folder(tmp_path / "model", TOOL_TEMPLATE))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("one\ntwo\n")
    monkeypatch.chdir(folder)
    with terminals() as open_terminal:

        def open_chat(
            *answers: object, options: tuple[str, ...] = ("--tools",), **env: str
        ) -> Terminal:
            script = ({"load_s": 0, "ctx_size_tokens": 20_000}, *answers)
            return open_terminal(program.command(*script, options=options), columns=100, **env)

        yield open_chat


def edit(old: str, new: str, path: str = "a.txt") -> str:
    return tool_call("edit", path=path, old_text=old, new_text=new)


def test_a_colored_diff_comes_before_the_change(chat: Chat) -> None:
    terminal = chat(edit("two", "2"), "Done.")
    terminal.type("edit\r")
    text = terminal.wait_for(QUESTION)
    assert "edit a.txt (+1 −1)" in text and "- two" in text and "+ 2" in text
    assert b"\x1b[31m- two" in terminal.raw and b"\x1b[32m+ 2" in terminal.raw
    assert Path("a.txt").read_text() == "one\ntwo\n"
    terminal.type_now("y\r")
    terminal.wait_for("Done.")
    assert Path("a.txt").read_text() == "one\n2\n"


def test_a_refused_change_is_not_made(chat: Chat) -> None:
    terminal = chat(edit("two", "2"), "Refused.")
    terminal.type("edit\r")
    terminal.wait_for(QUESTION)
    terminal.type_now("\r")
    terminal.wait_for("Refused.")
    assert Path("a.txt").read_text() == "one\ntwo\n"


def test_always_shows_diffs_still_and_asks_for_hidden_and_other_places(chat: Chat) -> None:
    Path(".hidden").write_text("x\n")
    calls = [edit("two", "2"), edit("2", "3"), edit("x", "y", ".hidden"), edit("x", "y", "../b")]
    Path("../b").write_text("x\n")
    terminal = chat(*calls, "Done.")
    terminal.type("edit\r")
    terminal.wait_for(QUESTION)
    terminal.type_now("a\r")
    text = terminal.wait_for(".hidden is hidden")
    assert text.count(QUESTION) == 1 and "+ 3" in text
    terminal.wait_for("[y/N/e]")
    terminal.type_now("a\r")  # no answer here
    terminal.wait_for(lambda text: text.count("[y/N/e]") == 2)
    terminal.type_now("n\r")
    terminal.wait_for(lambda text: text.count("[y/N/e]") == 3)
    assert "/b is outside of" in "".join(terminal.look().split("\n"))
    terminal.type_now("y\r")
    terminal.wait_for("Done.")
    assert Path("a.txt").read_text() == "one\n3\n"
    assert Path(".hidden").read_text() == "x\n" and Path("../b").read_text() == "y\n"


def test_s_shows_all_of_a_long_change(chat: Chat) -> None:
    lines = "".join(f"line {i} of it\n" for i in range(100))
    terminal = chat(tool_call("write", path="b.txt", content=lines), "Done.")
    terminal.type("write\r")
    assert "line 99 of it" not in terminal.wait_for("allow this call? [y/N/a/e/s]")
    assert "… 42 more lines" in terminal.look()
    terminal.type_now("s\r")
    terminal.wait_for(lambda text: "e/s]" in text.partition("+ line 99 of it")[2])
    terminal.type_now("n\r")
    terminal.wait_for("Done.")
    assert not Path("b.txt").exists()


def test_e_changes_a_command_before_it_runs(chat: Chat) -> None:
    terminal = chat(tool_call("shell", command="touch one"), "Done.")
    terminal.type("run\r")
    assert "$ touch one" in terminal.wait_for(QUESTION)
    terminal.type_now("e\r")
    terminal.wait_for(lambda text: text.count("$ touch one") == 2)
    terminal.type_now("\x7f\x7f\x7ftwo\r")
    terminal.wait_for("$ touch two")
    terminal.wait_for(lambda text: text.count(QUESTION) == 2)
    terminal.type_now("y\r")
    terminal.wait_for("Done.")
    assert Path("two").exists() and not Path("one").exists()
    assert 'The user changed this call to shell(command="touch two")' in terminal.look()


def test_e_opens_the_editor_for_several_lines(chat: Chat, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/old/new/ "$1"\n')
    editor.chmod(0o755)
    call = tool_call("write", path="b.txt", content="old\nlines\n")
    terminal = chat(call, "Done.", EDITOR=str(editor), VISUAL=str(editor))
    terminal.type("write\r")
    terminal.wait_for(QUESTION)
    terminal.type_now("e\r")
    terminal.wait_for("+ new")
    terminal.wait_for(lambda text: text.count(QUESTION) == 2)
    assert not Path("b.txt").exists()
    terminal.type_now("y\r")
    terminal.wait_for("Done.")
    assert Path("b.txt").read_text() == "new\nlines\n"


def test_ctrl_c_ends_a_command_and_all_that_it_has_started(chat: Chat) -> None:
    command = "echo $$ > pids; sleep 600 & echo $! >> pids; wait"
    options = ("--tools", "--allow-tool", "shell")
    terminal = chat(tool_call("shell", command=command), "Going on.", options=options)
    terminal.type("run\r")
    wait_until(lambda: Path("pids").exists() and len(Path("pids").read_text().split()) == 2)
    terminal.type_now("\x03")
    terminal.wait_for("The user canceled this call.")
    pids = [int(pid) for pid in Path("pids").read_text().split()]
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    terminal.type("/continue\r")
    terminal.wait_for("Going on.")


def test_a_command_ends_with_the_program(chat: Chat) -> None:
    options = ("--tools", "--allow-tool", "shell")
    call = tool_call("shell", command="echo $$ > pid; exec sleep 600")
    terminal = chat(call, "Going on.", options=options)
    terminal.type("run\r")
    wait_until(lambda: Path("pid").exists() and Path("pid").read_text())
    os.kill(terminal.process.pid, 9)
    wait_until(lambda: not psutil.pid_exists(int(Path("pid").read_text())))


def test_tools_are_off_until_they_are_turned_on(chat: Chat) -> None:
    terminal = chat(tool_call("list"), tool_call("list"), "Listed.", options=())
    terminal.type("/tools\r")
    terminal.wait_for("/tools on gives the model the built-in tools: read, list,")
    terminal.type("hello\r")
    terminal.wait_for("<tool_call>")
    terminal.type("/tools on rm\r")
    terminal.wait_for("there is no built-in tool 'rm'")
    terminal.type("/tools on read list\r")
    terminal.wait_for("2 tools are on")
    terminal.type("/tools allow list\r")
    terminal.wait_for("until the end of this chat")
    terminal.type("list\r")
    assert QUESTION not in terminal.wait_for("Listed.")
    terminal.type("/tools on\r")
    terminal.wait_for(lambda text: text.count("2 tools are on") == 2)
    terminal.type("/tools on all\r")
    terminal.wait_for("8 tools are on")
    terminal.type("/tools\r")
    terminal.wait_for("built in: 8 tools")


def test_calls_and_results_are_saved(chat: Chat) -> None:
    terminal = chat(
        tool_call("read", path="a.txt"), "Read.", options=("--tools", "--allow-tool=all")
    )
    terminal.type("read\r")
    terminal.wait_for("Read.")
    terminal.type("/export saved.json\r")
    wait_until(lambda: Path("saved.json").exists())
    terminal.type("/bye\r")
    wait_until(lambda: not terminal.process.isalive())
    assert "one\\ntwo" in json.dumps(json.loads(Path("saved.json").read_text()))
