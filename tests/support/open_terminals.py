"""Terminals of a test, which are closed at its end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tests.support.program import Program
from tests.support.terminal import Terminal


class Open(Protocol):
    """Starts a command line in a terminal, and waits for the prompt if `waits`."""

    def __call__(self, command: list[str], *, waits: bool = True, **settings: Any) -> Terminal: ...


class Chat(Protocol):
    """Opens a chat with scripted answers in a terminal; settings are those of `Terminal`."""

    def __call__(
        self, *answers: object, options: tuple[str, ...] = (), **settings: Any
    ) -> Terminal: ...


@contextmanager
def terminals() -> Iterator[Open]:
    """Yield what opens terminals; close them behind the `with`."""
    opened: list[Terminal] = []

    def open_terminal(command: list[str], *, waits: bool = True, **settings: Any) -> Terminal:
        executable, *args = command
        opened.append(Terminal(executable, args, **settings))
        if waits:
            opened[-1].wait_for(">>>", 60)
        return opened[-1]

    try:
        yield open_terminal
    finally:
        for terminal in opened:
            terminal.kill()


@contextmanager
def chats(program: Program, *, waits: bool = True) -> Iterator[Chat]:
    """Yield what opens chats of a program in terminals."""
    with terminals() as open_terminal:

        def open_chat(*answers: object, options: tuple[str, ...] = (), **settings: Any) -> Terminal:
            command = program.command(*answers, options=options)
            return open_terminal(command, waits=waits, **settings)

        yield open_chat
