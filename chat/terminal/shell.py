"""A shell command that the user runs from this program: `!CMD` and `swiftchat do`."""

import signal
from dataclasses import dataclass

from swiftchat.chat.terminal.child import ShellCommand, plain_text
from swiftchat.chat.terminal.keyboard import Keyboard
from swiftchat.chat.terminal.output import write

MAX_OUTPUT = 1 << 20  # characters
_STOP_SIGNALS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGSTOP)
_INTERRUPTED = 130


@dataclass(frozen=True)
class ShellRun:
    """What a command has written, as lines without colors, and its exit status.

    `size` counts all characters of the output, of which `output` has the first million.
    """

    output: str
    size: int
    status: int


def run_shown(command: str, keyboard: Keyboard) -> ShellRun:
    """Run a command on the terminal, which it gets as in a shell, and tell how it ended.

    Raises `UsageError` if there is no shell.
    """
    shown = _Output()
    with keyboard.lent():
        try:
            ended = ShellCommand(command, shown.add)
            keyboard.type_again(ended.unread)
            status = ended.status
        except KeyboardInterrupt:
            status = _INTERRUPTED
        if shown.text and not shown.text.endswith("\n"):
            print()
    if note := _note(status):
        print(note)
    return ShellRun(plain_text(shown.text), shown.size, status)


class _Output:
    """The beginning of an output, and the number of all its characters."""

    def __init__(self) -> None:
        self.text, self.size = "", 0

    def add(self, text: str) -> None:
        """Show a piece on the terminal as it is."""
        write(text)
        self.text += text[: max(0, MAX_OUTPUT - self.size)]
        self.size += len(text)


def _note(status: int) -> str:
    """Return what to tell about the exit status of a shell command."""
    number = status - 128
    if number == signal.SIGINT:
        return "interrupted"
    if number in _STOP_SIGNALS:
        return "stopped, and ended: a stopped command cannot go on here"
    if number in set(signal.Signals):
        return f"ended by {signal.Signals(number).name}"
    return f"exit status {status}" if status else ""
