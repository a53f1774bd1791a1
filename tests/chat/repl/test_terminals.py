"""Chats on terminals of several sizes and types, under a shell with job control, in tmux."""

import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import fake_engine
from tests.support.program import Program
from tests.support.sessions import save_chat
from tests.support.terminal import Terminal

SIZES = [(80, 24), (20, 10), (200, 60)]
WORDS = " ".join(f"word{i}" for i in range(60))
SLOW = {"text": f"{WORDS}\n\nlast", "delay_s": 0.002}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(fake_engine.make_folder(tmp_path / "model"))


@pytest.mark.fault(38)
@pytest.mark.parametrize("term", ["dumb", "xterm-256color"])
@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_a_short_chat_on_any_terminal(program: Program, columns: int, rows: int, term: str) -> None:
    slow = {"text": "word1 word2 word3 word4 word5 word6", "delay_s": 0.01}
    command, *args = program.command("你好 👋 one.", slow, "Typed ahead.")
    terminal = Terminal(command, args, columns, rows, TERM=term)
    terminal.wait_for(">>>")
    terminal.type("嗨 👋\r")
    terminal.wait_for("one.")
    terminal.type("/new\r")
    terminal.wait_for("a new")
    terminal.type("more\r")
    terminal.wait_for("word3")
    terminal.type_now("typed ahead\r")
    terminal.wait_for(lambda text: "ahead" in text and "word6" in "".join(text.split()))
    terminal.type("\r")
    terminal.wait_for("Typed ahead.")
    terminal.type("/bye\r")
    assert terminal.wait_end() == 0
    assert (b"\x1b" in terminal.raw) == (term != "dumb")


def in_shell(program: Program, *answers: object) -> Terminal:
    """Start a chat from the prompt of an interactive shell."""
    script = program.folder.with_name("chat")
    script.write_text(f"#!/bin/sh\nexec {shlex.join(program.command(*answers))}\n")
    script.chmod(0o700)
    terminal = Terminal("bash", ["--norc", "--noprofile", "-i"], PS1="$ ", NO_COLOR="")
    terminal.wait_for("$")
    terminal.type(f"clear; {script}\r")
    terminal.wait_for("Send a message")
    return terminal


@pytest.mark.parametrize(
    ("options", "env", "is_colored"),
    [
        (("--color", "never"), {}, False),
        (("--theme", "none"), {}, False),
        ((), {"NO_COLOR": "1"}, False),
        (("--color", "always"), {"NO_COLOR": "1"}, True),
        (("--raw",), {}, True),
    ],
)
def test_menu_and_toolbar_have_colors_as_answers_have(
    program: Program, options: tuple[str, ...], env: dict[str, str], is_colored: bool
) -> None:
    command, *args = program.command("**Bold** `code`.", options=options)
    terminal = Terminal(command, args, **{"NO_COLOR": "", "FORCE_COLOR": "", **env})
    terminal.wait_for("Send a message")
    terminal.type_now("/s\t")
    terminal.wait_for("/sessions")
    sequences = re.findall(rb"\x1b\[([\d;]*)m", terminal.raw)
    numbers = {int(number) for text in sequences for number in text.split(b";") if number}
    assert bool(numbers & {*range(30, 50), *range(90, 108)} - {39, 49}) == is_colored
    terminal.kill()


def test_ctrl_z_and_fg_while_typing(program: Program) -> None:
    terminal = in_shell(program, "Answered.")
    terminal.type("a draft")
    terminal.wait_for(">>> a draft")
    terminal.type("\x1a")
    terminal.wait_for("Stopped")
    assert "a draft" not in terminal.look()
    terminal.type("fg\r")
    terminal.wait_for(">>> a draft")
    terminal.type("\r")
    terminal.wait_for("Answered.")
    terminal.process.close(force=True)


def test_ctrl_z_and_fg_during_an_answer(program: Program) -> None:
    terminal = in_shell(program, SLOW, "Next.")
    terminal.type("go\r")
    terminal.wait_for("word9 ")
    terminal.type("\x1a")
    text = terminal.wait_for(lambda text: "Stopped" in text and text.rstrip().endswith("$"))
    assert "word" not in text, "temporary output must be erased before the shell"
    terminal.type("stty -a\r")  # the terminal settings of the next program
    text = terminal.wait_for(lambda text: "icanon" in text and text.rstrip().endswith("$"))
    assert " icanon" in text and " icrnl" in text and " -echo " not in text
    terminal.type("clear; fg\r")
    text = terminal.wait_for(lambda text: "last" in text and "Send a" in text)
    assert " ".join(text.partition("word0 ")[2].split()).startswith(WORDS.partition(" ")[2])
    assert text.count("word5 ") == 1
    terminal.type("/new\r")
    terminal.wait_for("a new conversation")
    terminal.type("next\r")
    terminal.wait_for("Next.")
    terminal.process.close(force=True)


def test_the_editor_returns_its_text_to_the_line(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nn=$(grep -c line $1)\necho read $n lines > $1\n")
    editor.chmod(0o700)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    terminal = Terminal(*_split(program.command("Sent.")))
    terminal.wait_for(">>>")
    pasted = "".join(f"line {i}\n" for i in range(30))
    terminal.type(f"\x1b[200~{pasted}\x1b[201~")
    terminal.wait_for("[pasted 30 lines]")
    terminal.type("\x18\x05")
    text = terminal.wait_for(">>> read 30 lines")
    assert "Sent." not in text
    terminal.type("\x0c")  # Ctrl-L clears the screen except for the line
    terminal.wait_for(lambda text: text.startswith(">>> read 30 lines"))
    terminal.type("\r")
    terminal.wait_for("Sent.")
    terminal.process.close(force=True)


def test_tab_completes_conversations(program: Program) -> None:
    save_chat("the trip to Rome")
    terminal = Terminal(*_split(program.command()))
    terminal.wait_for(">>>")
    terminal.type("/resume \t")
    terminal.wait_for(lambda text: re.search(r"/resume [0-9a-f]{8}\b", text) is not None)
    terminal.type("\r")
    terminal.wait_for("continuing: the trip to Rome (2 messages)")
    terminal.process.close(force=True)


def test_a_history_search_hides_the_placeholder(program: Program) -> None:
    terminal = Terminal(*_split(program.command("Answer.")))
    terminal.wait_for("Send a message")
    terminal.type("find this again\r")
    terminal.wait_for("Answer.")
    terminal.type("\x12again")
    text = terminal.wait_for(lambda text: text.count("find this again") == 2)
    assert "Send a message" not in text
    terminal.process.close(force=True)


def test_an_ended_line_leaves_no_placeholder_behind(program: Program) -> None:
    terminal = Terminal(*_split(program.command("Answer.")))
    terminal.wait_for("Send a message")
    terminal.type("\r")
    terminal.wait_for(lambda text: text.count(">>>") == 2 and "Send a message" in text)
    terminal.type("\x03")
    text = terminal.wait_for(lambda text: "Send a message" in text.partition("/bye leaves")[2])
    assert text.count("Send a message") == 1
    terminal.process.close(force=True)


def _split(command: list[str]) -> tuple[str, list[str]]:
    return command[0], command[1:]


class Tmux:
    """A separate tmux server with one window that runs a command."""

    def __init__(self, socket: Path, command: list[str], columns: int, rows: int) -> None:
        self._tmux = ["tmux", "-f", os.devnull, "-S", str(socket)]
        self.run("new-session", "-d", "-x", str(columns), "-y", str(rows), shlex.join(command))

    def run(self, *args: str) -> str:
        return subprocess.run(
            [*self._tmux, *args], capture_output=True, text=True, check=True
        ).stdout

    def type(self, text: str) -> None:
        self.run("send-keys", "-l", text)

    def screen_text(self) -> str:
        """Return scrollback and screen; wrapped lines are joined."""
        return self.run("capture-pane", "-p", "-J", "-S", "-")

    def wait_for(self, wanted: Callable[[str], bool], seconds: float = 60) -> str:
        deadline = time.monotonic() + seconds
        while not wanted(text := self.screen_text()):
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
        return text


@pytest.fixture
def tmux(program: Program) -> Iterator[Callable[..., Tmux]]:
    if shutil.which("tmux") is None:
        pytest.skip("no tmux")
    opened: list[Tmux] = []
    # A new folder, because the server of the previous test may still be running. `tmp_path` is too
    # long for the name of a socket.
    folder = Path(tempfile.mkdtemp(prefix="swiftchat-tmux-"))

    def open_tmux(*answers: object, columns: int = 80, rows: int = 24) -> Tmux:
        opened.append(Tmux(folder / "socket", program.command(*answers), columns, rows))
        opened[0].wait_for(lambda text: ">>>" in text)
        return opened[0]

    yield open_tmux
    for window in opened:
        window.run("kill-server")
    shutil.rmtree(folder, ignore_errors=True)  # the server may remove its socket meanwhile


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_each_word_appears_once_in_tmux(tmux: Callable[..., Tmux], columns: int, rows: int) -> None:
    window = tmux(SLOW, "Next.", columns=columns, rows=rows)
    window.type("go\r")
    window.wait_for(lambda text: "word2" in text)
    window.type("typed ahead")
    text = window.wait_for(lambda text: "\nlast" in text and ">>> typed ahead" in text)
    answer = text.partition("go\n")[2].partition("\nlast")[0]
    assert answer.split() == WORDS.split()


def test_resizing_tmux_during_an_answer_loses_no_words(
    tmux: Callable[..., Tmux],
) -> None:
    window = tmux(SLOW)
    window.type("go\r")
    for columns, word in ((50, "word9 "), (100, "word25"), (30, "word40")):
        window.wait_for(lambda text, word=word: word in text)  # type: ignore[misc]
        window.run("resize-window", "-x", str(columns), "-y", "24")
    text = window.wait_for(lambda text: "\nlast" in text)
    # tmux rewraps its lines at once, but the program gets the signal a quarter of a second later.
    # Output drawn meanwhile may leave remains above; no word is lost.
    words = [word for word in text.split() if word.startswith("word")]
    assert words[-len(WORDS.split()) :] == WORDS.split()


@pytest.mark.fault(38)
def test_resizes_to_any_size_during_an_answer(program: Program) -> None:
    choice = random.Random(7)
    sizes = [(1, 1), (10, 20), (3, 2), (60, 200), (24, 80), (2, 400)]
    words = " ".join(f"word{i}" for i in range(200))
    command, *args = program.command({"text": f"{words}\n\nlast", "delay_s": 0.001}, "Again.")
    terminal = Terminal(command, args)
    terminal.wait_for(">>>", 60)
    terminal.type("go\r")
    terminal.wait_for("word", 60)
    for size in (*sizes, *choice.choices(sizes, k=30), (24, 80)):
        terminal.process.setwinsize(*size)
        terminal.screen.resize(*size)
        terminal.look()
    # Its end may have been written while the screen had one line.
    terminal.wait_for("Send a message", 60)
    terminal.type("/show\r")
    terminal.wait_for("last", 60)
    terminal.type("/new\r")
    terminal.type("again\r")
    terminal.wait_for("Again.", 60)
    terminal.type("\x04")
    assert terminal.wait_end() == 0


def test_a_full_screen_program_has_the_terminal(program: Program, tmp_path: Path) -> None:
    """It reads keys, sees the size and its changes, and leaves the settings as they were."""
    script = tmp_path / "screen.py"
    script.write_text(FULL_SCREEN)
    paths = {"PYTHON": sys.executable, "SCREEN": str(script)}
    terminal = Terminal(*_split(program.command("Answer.")), **paths)
    terminal.wait_for("Send a message")
    terminal.type("!$PYTHON $SCREEN; echo end\r")
    terminal.wait_for("size 80x24")
    terminal.process.setwinsize(30, 100)
    terminal.screen.resize(30, 100)
    terminal.wait_for("size 100x30")
    terminal.type_now("\x03\x1a\x1b[A")  # to the program: it has switched signals off
    terminal.wait_for("keys b'\\x03\\x1a\\x1b[A'")
    terminal.type_now("q")
    terminal.wait_for("end\n/attach")
    terminal.type("/attach\r")
    terminal.wait_for("$ $PYTHON $SCREEN; echo end is attached to the next message")
    terminal.type("hello\r")
    terminal.wait_for("Answer.")
    terminal.kill()


FULL_SCREEN = r"""
import os, signal, sys, tty
tty.setraw(0)
def show(*_):
    size = os.get_terminal_size(0)
    os.write(1, b"\x1b[?1049h\x1b[2J\x1b[Hsize %dx%d " % (size.columns, size.lines))
signal.signal(signal.SIGWINCH, show)
show()
keys = b""
while not keys.endswith(b"q"):
    keys += os.read(0, 100)
    os.write(1, b"\x1b[2;1Hkeys " + repr(keys).encode())
os.write(1, b"\x1b[?1049l")
os.system("stty sane")
"""


def test_ctrl_c_and_ctrl_z_of_a_command(program: Program) -> None:
    """The chat neither ends nor stops; colors stay on the screen."""
    terminal = in_shell(program, "Answer.")
    terminal.type("!printf '\\033[31mred\\033[0m\\n'; cat\r")
    terminal.wait_for("\nred")
    assert b"\x1b[31mred" in terminal.raw
    terminal.type_now("\x03")
    terminal.wait_for("interrupted")
    terminal.type("!cat\r")
    terminal.wait_for("!cat\n")
    terminal.type_now("typed\r")
    terminal.wait_for(lambda text: text.count("typed") == 2)
    terminal.type_now("\x1a")
    terminal.wait_for("stopped, and ended")
    terminal.type("hello\r")
    terminal.wait_for("Answer.")
    terminal.type("/bye\r")
    terminal.wait_for(lambda text: text.rstrip().endswith("$"))
    terminal.type("stty -a\r")
    text = terminal.wait_for(lambda text: "icanon" in text and text.rstrip().endswith("$"))
    assert " icanon" in text and " icrnl" in text and " -echo " not in text
    terminal.kill()


def test_a_command_in_the_background_leaves_the_prompt_alone(
    program: Program, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    terminal = Terminal(*_split(program.command("Answer.")))
    terminal.wait_for("Send a message")
    background = f"(read x < {tmp_path}/pipe; echo late output; echo $x > {tmp_path}/done)"
    terminal.type(f"!{background} &\r")
    terminal.wait_for(lambda text: text.count(">>>") == 2 and "Send a message" in text)
    (tmp_path / "pipe").write_text("go\n")
    deadline = time.monotonic() + 60
    while not (tmp_path / "done").exists():
        assert time.monotonic() < deadline, terminal.look()
    assert terminal.look().count("late output") == 1  # in the command
    terminal.kill()


def test_resume_picks_with_arrows_and_a_filter(program: Program) -> None:
    for question in ("the trip to Rome", "a cake", "the trip to Oslo"):
        save_chat(question, f"About {question}.")
    terminal = Terminal(*_split(program.command()))
    terminal.wait_for("Send a message")
    terminal.type("/resume\r")
    terminal.wait_for(lambda text: "> " in text and "About the trip to Oslo." in text)
    terminal.type_now("trip")
    terminal.wait_for(lambda text: "a cake" not in text)
    terminal.type_now("\x1b[B")
    terminal.wait_for("About the trip to Rome.")
    terminal.type_now("\r")
    text = terminal.wait_for("continuing: the trip to Rome (2 messages)")
    assert "Esc leaves" not in text
    terminal.wait_for("Send a message")
    terminal.type("/resume\r")
    terminal.wait_for("Esc leaves")
    terminal.type_now("\x1b")
    terminal.wait_for(lambda text: "Esc leaves" not in text)
    terminal.process.close(force=True)
