"""Ctrl-C twice within 2 s ends the program, whatever hangs."""

import time

import psutil
import pytest

from tests.support.forks.install import real_starts
from tests.support.program import Program
from tests.support.serve_processes import SWIFTCHAT
from tests.support.terminal import Terminal
from tests.support.worker_processes import has_ended, wait_until


def interrupt_twice(terminal: Terminal) -> None:
    """Type Ctrl-C until the program has ended, twice within 2 s each time."""
    # On a busy machine the second one may come too late: then the next two count.
    deadline = time.monotonic() + 120
    while terminal.process.isalive():
        assert time.monotonic() < deadline, terminal.look()
        terminal.type_now("\x03")
        for _ in range(10):
            terminal.look()


@pytest.mark.fault(42)
def test_a_hanging_answer_is_left(program: Program) -> None:
    command, *args = program.command({"text": "never", "delay_s": 600})
    terminal = Terminal(command, args)
    terminal.wait_for(">>>", 60)
    terminal.type("go\r")
    # The toolbar is gone: the message was sent.
    terminal.wait_for(lambda text: text.rstrip().endswith(">>> go"), 60)
    interrupt_twice(terminal)
    assert terminal.wait_end() == 130
    assert b"Traceback" not in terminal.raw


@pytest.mark.fault(42)
def test_a_stopped_engine_is_left_and_ends(program: Program) -> None:
    with real_starts():  # a forked worker may have ended before it is found: it has no weights
        terminal = Terminal(SWIFTCHAT[0], [*SWIFTCHAT[1:], "-m", str(program.folder)])
    chat = psutil.Process(terminal.process.pid)
    # Stopped before it runs a program of its own, it would stop the chat in `Popen`, too. Another
    # child renders templates.
    found: list[psutil.Process] = []

    def is_found() -> bool:
        found[:] = [c for c in chat.children() if "swiftchat.engine.worker" in c.cmdline()]
        return bool(found)

    wait_until(is_found, 60)
    (worker,) = found
    worker.suspend()  # by SIGSTOP, before it has asked the system to end it with the chat
    terminal.wait_for(">>>", 60)
    terminal.type("go\r")
    terminal.wait_for(lambda text: text.rstrip().endswith(">>> go"), 60)
    interrupt_twice(terminal)
    assert terminal.wait_end() == 130
    wait_until(lambda: has_ended(worker.pid), 60)
