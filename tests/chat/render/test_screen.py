"""Rendered answers in a pty: the contents of screen and scrollback."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
import pytest

from tests.chat.render.test_markdown import SHOWCASE, Screen
from tests.support import fake_engine
from tests.support.terminal import Terminal

THINKS = fake_engine.TEMPLATE + "{# </think> #}"
Chat = Callable[..., Terminal]


def command(folder: Path, *answers: object) -> list[str]:
    fake_engine.make_folder(folder, THINKS)
    return [str(fake_engine.__file__), str(folder), json.dumps(answers)]


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    opened: list[Terminal] = []

    def open_chat(
        *answers: object,
        options: tuple[str, ...] = (),
        columns: int = 80,
        rows: int = 24,
        **env: str,
    ) -> Terminal:
        args = [*command(tmp_path / "model", *answers), *options]
        plain = {"NO_COLOR": "", "TMUX": "", "VTE_VERSION": "", "TERM_PROGRAM": "", "SSH_TTY": ""}
        terminal = Terminal(sys.executable, args, columns, rows, **{**plain, **env})
        terminal.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        terminal._stream = pyte.ByteStream(terminal.screen)
        opened.append(terminal)
        terminal.wait_for(">>>")
        return terminal

    yield open_chat
    for terminal in opened:
        terminal.process.close(force=True)


def all_lines(terminal: Terminal) -> list[str]:
    """Return the lines of the scrollback and of the screen."""
    screen = terminal.screen
    above = ["".join(line[i].data for i in range(screen.columns)) for line in screen.history.top]
    return [line.rstrip() for line in [*above, *screen.display]]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (20, 10), (200, 60)])
def test_each_line_appears_once(chat: Chat, columns: int, rows: int) -> None:
    terminal = chat({"text": SHOWCASE, "delay_s": 0.001}, columns=columns, rows=rows)
    terminal.type("x\r")
    terminal.wait_for(lambda text: ">>>" in text.partition("no end")[2])
    wanted = [line for line in Screen(columns, rows, is_live=False).show(SHOWCASE) if line]
    lines = [line for line in all_lines(terminal) if line]
    start = lines.index("Title")
    assert lines[start : start + len(wanted)] == wanted
    assert lines.count("Title") == 1 and lines.count("Its second line.") == 1


@pytest.mark.fault(38)
def test_a_resize_while_answering(chat: Chat) -> None:
    words = " ".join(f"word{i}" for i in range(120))
    terminal = chat({"text": f"# Head\n\n{words}\n\nlast", "delay_s": 0.002}, "Next.")
    terminal.type("x\r")
    for i, columns in ((20, 50), (50, 100), (80, 30)):
        terminal.wait_for(f"word{i} ")
        terminal.process.setwinsize(24, columns)
        terminal.screen.resize(24, columns)
    terminal.wait_for(lambda text: ">>>" in text.partition("last")[2])
    text = " ".join(all_lines(terminal)).split()
    assert [word for word in text if word.startswith("word")] == words.split()


def test_reasoning_is_folded_and_shown_on_request(chat: Chat) -> None:
    answer = {"text": f"<think>\n{'I wonder. ' * 9}\n</think>\n\nFour.", "delay_s": 0.01}
    terminal = chat(answer, "Five.")
    terminal.type("x\r")
    terminal.wait_for(lambda text: "Thinking…" in text and "I wonder." in text)
    text = terminal.wait_for(lambda text: "Four." in text and "Send" in text)
    assert "…done thinking (" in text and "tok, " in text
    assert "wonder" not in "".join(all_lines(terminal)) and "think>" not in text
    terminal.type("/reasoning\r")
    terminal.wait_for("I wonder. I wonder.")
    terminal.type("/think on\r")
    terminal.wait_for("cannot set thinking")


def test_copy_over_ssh(chat: Chat) -> None:
    terminal = chat("```\none\n```\n\n```py\ntwo\n```\nend", SSH_TTY="/dev/pts/9")
    terminal.type("/copy\r")
    terminal.wait_for("no answer yet")
    terminal.type("x\r")
    terminal.wait_for(lambda text: "[2] py" in text and "Send" in text)
    for typed, reply, code in (
        ("/copy code 1", "code block 1 of 2", b"b25lCg=="),
        ("/copy code", "code block 2 of 2", b"dHdvCg=="),
        ("/copy all", "the conversation", b"dXNlcjoKeA"),
        ("/copy", "the answer", b"YGBgCm9uZQ"),
    ):
        terminal.type(f"{typed}\r")
        terminal.wait_for(reply)
        assert b"\x1b]52;c;" + code in terminal.raw
    terminal.type("/copy code 3\r")
    terminal.wait_for("no code block 3")


@pytest.mark.parametrize(
    ("options", "env"), [((), {"TERM": "dumb"}), (("--accessible",), {}), ((), {"ACCESSIBLE": "1"})]
)
def test_accessible_output_redraws_nothing(
    chat: Chat, options: tuple[str, ...], env: dict[str, str]
) -> None:
    terminal = chat(
        {"text": "<think>hm</think># Head\n\nSome **words**.", "delay_s": 0.01},
        options=options,
        **env,
    )
    terminal.type("x\r")
    text = terminal.wait_for(lambda text: "Some words." in text and text.count("You >>>") >= 2)
    assert "model:\nThinking…\n…done thinking (" in text and "# Head\n\nSome words.\n" in text
    answer = terminal.raw.partition(b"model:")[2].partition(b"words.")[0]
    assert b"\x1b" not in answer and answer.count(b"\r") == answer.count(b"\r\n")


def test_no_color_is_respected(chat: Chat) -> None:
    terminal = chat(SHOWCASE, NO_COLOR="1")
    terminal.type("x\r")
    terminal.wait_for("no end")
    answer = terminal.raw.partition(b"Title")[2].partition(b"no end")[0]
    assert b"\x1b[1m" in answer and b"\x1b[3" not in answer.replace(b"\x1b[3m", b"")


def test_raw_shows_the_models_text_sanitized(chat: Chat) -> None:
    terminal = chat("<think>hm</think>**four** `x`\x1b[2J", options=("--raw",))
    terminal.type("x\r")
    terminal.wait_for("<think>hm</think>**four** `x`␛[2J")


def test_one_shot_on_a_terminal_is_rendered(tmp_path: Path) -> None:
    args = command(tmp_path / "model", {"text": SHOWCASE, "delay_s": 0.001})
    terminal = Terminal(sys.executable, [*args, "-p", "x"], rows=40, NO_COLOR="", TMUX="")
    text = terminal.wait_for("no end")
    assert "[1] py" in text and "**bold**" not in text
    assert terminal.wait_end() == 0


def piped(folder: Path, answer: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command(folder, answer), "-p", "x", *options],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm-256color", **env},
    )


@pytest.mark.fault(38)
def test_a_pipe_receives_the_exact_text(tmp_path: Path) -> None:
    text = f"<think>hm</think>\n\n{SHOWCASE}\x1b[2J"
    result = piped(tmp_path / "a", text, FORCE_COLOR="1")
    assert (result.stdout, result.stderr) == (f"{SHOWCASE}\x1b[2J\n", "")
    assert piped(tmp_path / "b", text, "--raw").stdout == f"{text}\n"
    report = json.loads(piped(tmp_path / "c", text, "--json").stdout)
    assert (report["reasoning"], report["content"]) == ("hm", f"{SHOWCASE}\x1b[2J")
    lines = piped(tmp_path / "d", text, "--stream-json").stdout.splitlines()
    events = [json.loads(line) for line in lines]
    reasoning = "".join(event["content"] for event in events if event["event"] == "reasoning")
    assert reasoning == "hm"
    colored = piped(tmp_path / "e", text, "--color", "always").stdout
    assert "\x1b[1;4;35mTitle" in colored and "\x1b[K" not in colored and "␛[2J" in colored


def test_extract_prints_code_only(tmp_path: Path) -> None:
    result = piped(tmp_path / "a", SHOWCASE, "-x")
    assert (result.stdout, result.stderr) == ('x = "你好"\n\ny = 2\nno end\n\n', "")
    result = piped(tmp_path / "b", "no code", "-x")
    assert (result.returncode, result.stdout) == (0, "") and "no code block" in result.stderr
    assert piped(tmp_path / "c", "x", "-x", "--json").returncode == 2
