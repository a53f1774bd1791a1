"""Fault 38: the terminal is resized, has one column and one row, is dumb, or is none.

Required: nothing crashes, no word of an answer is lost, a dumb terminal and a pipe get no escape
sequence.

Provoked by: resizes by ioctl during an answer, `TERM=dumb`, and a pipe under a color terminal's
environment.
"""

import random
from collections.abc import Callable

from tests.support.program import Program
from tests.support.terminal import Terminal

SIZES = [(1, 1), (10, 20), (3, 2), (60, 200), (24, 80), (2, 400)]
SHOWN = "# Head\n\nSome *words* and `code`.\n\n```py\nx = 1\n```\n\n|a|b|\n|-|-|\n|c|d|\n"


def test_resizes_during_an_answer(chat: Callable[..., Terminal]) -> None:
    choice = random.Random(7)
    words = " ".join(f"word{i}" for i in range(200))
    terminal = chat({"text": f"{words}\n\nlast", "delay_s": 0.001}, "Again.")
    terminal.type("go\r")
    terminal.wait_for("word", 60)
    for size in (*SIZES, *choice.choices(SIZES, k=30)):
        terminal.process.setwinsize(*size)
        terminal.screen.resize(*size)
        terminal.look()
    terminal.process.setwinsize(24, 80)
    terminal.screen.resize(24, 80)
    terminal.wait_for("last", 60)
    terminal.type("/new\r")
    terminal.type("again\r")
    terminal.wait_for("Again.", 60)
    terminal.type("\x04")
    assert terminal.wait_end() == 0


def test_one_column_and_one_row(chat: Callable[..., Terminal]) -> None:
    terminal = chat(SHOWN, "Again.")
    terminal.process.setwinsize(1, 1)
    terminal.screen.resize(1, 1)
    terminal.type_now("go\r")
    # Rows of one column: what was written is looked for, not what is seen.
    deadline = 1200
    while b"H" not in terminal.raw or b"d" not in terminal.raw.rpartition(b"H")[2]:
        terminal.look()
        deadline -= 1
        assert deadline, terminal.raw
    terminal.process.setwinsize(24, 80)
    terminal.screen.resize(24, 80)
    terminal.type("again\r")
    terminal.wait_for("Again.", 60)
    terminal.type("\x04")
    assert terminal.wait_end() == 0


def test_a_dumb_terminal_gets_no_escape_sequence(chat: Callable[..., Terminal]) -> None:
    terminal = chat(SHOWN, TERM="dumb")
    terminal.type("x\r")
    terminal.wait_for("Some", 60)
    terminal.type("/bye\r")
    assert terminal.wait_end() == 0
    assert b"\x1b" not in terminal.raw


def test_a_pipe_gets_the_text_as_it_is(program: Program) -> None:
    done = program.run("-p", "x", answers=(SHOWN,), TERM="xterm-256color")
    assert (done.returncode, done.stdout, done.stderr) == (0, SHOWN.encode(), b"")
