"""A program in a pty with an emulated screen."""

import contextlib
import fcntl
import os
import re
import signal
import termios
import time
from collections.abc import Callable
from typing import Self

import pexpect
import pexpect.fdpexpect
import psutil
import pyte

# pyte does not report its cursor position; prompt_toolkit would wait for the report. Without a
# pager all output is on the screen.
EMULATED = {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "PAGER": ""}


class Terminal:
    """A program in a pty with an emulated screen."""

    def __init__(
        self, command: str, args: list[str], columns: int = 80, rows: int = 24, **env: str
    ) -> None:
        environment = {**os.environ, **EMULATED, **env}
        # pytest-xdist sets the size of its own; that of the terminal would not count.
        environment |= {name: "" for name in ("COLUMNS", "LINES") if name not in env}
        self._show(columns, rows)
        self.process = pexpect.spawn(
            command, args, dimensions=(rows, columns), env=environment, timeout=60
        )
        # Otherwise `close` gives up 0.1 s after it has killed the program.
        self.process.ptyproc.terminate = self._terminate

    @classmethod
    def of(cls, descriptor: int) -> Self:
        """The terminal, of 80 columns and 24 rows, of a program that runs already."""
        terminal = cls.__new__(cls)
        terminal._show(80, 24)
        terminal.process = pexpect.fdpexpect.fdspawn(descriptor)
        return terminal

    def _show(self, columns: int, rows: int) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""

    def type(self, text: str) -> None:
        """Type keys; if the last one is Enter, at a prompt: elsewhere Enter does not send."""
        if text.endswith("\r"):
            self.wait_for(lambda screen: self.is_at_prompt)
        self.type_now(text)

    def type_now(self, text: str) -> None:
        """Type keys whatever the program does."""
        self.process.send(text)

    def wait_read(self, seconds: float = 60) -> None:
        """Wait until the program has read all keys."""
        # psutil remembers the terminals that there were at its first question.
        psutil._psposix.get_terminal_map.cache_clear()
        terminal = os.open(psutil.Process(self.process.pid).terminal(), os.O_RDONLY | os.O_NOCTTY)
        try:
            deadline = time.monotonic() + seconds
            while any(fcntl.ioctl(terminal, termios.FIONREAD, bytes(4))):
                assert time.monotonic() < deadline, "keys were not read"
                self.look()
        finally:
            os.close(terminal)

    def _terminate(self, force: bool = False) -> bool:
        """End the program as a closed terminal does, or by force; return whether it has ended."""
        process = self.process.ptyproc
        signals = (signal.SIGHUP, signal.SIGCONT, *([signal.SIGKILL] if force else []))
        for number in signals:
            deadline = time.monotonic() + (60 if number == signal.SIGKILL else 1)
            if process.isalive():
                process.kill(number)
            while process.isalive() and time.monotonic() < deadline:
                time.sleep(0.01)
        return not process.isalive()

    @property
    def is_at_prompt(self) -> bool:
        """Whether the cursor is on a line that begins with a prompt."""
        line = self.screen.display[self.screen.cursor.y]
        return re.match(r"(You )?>>> |\.\.\. |\$ |\(reverse-i-search\)", line) is not None

    def look(self) -> str:
        """Feed new output to the screen and return the screen's text."""
        self.read()
        return "\n".join(line.rstrip() for line in self.screen.display)

    def read(self) -> bool:
        """Feed new output to the screen; return whether there was any within 50 ms."""
        with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF):
            piece = self.process.read_nonblocking(65536, timeout=0.05)
            self.raw += piece
            self._stream.feed(piece)
            return bool(piece)
        return False

    def wait_for(self, wanted: str | Callable[[str], bool], seconds: float = 60) -> str:
        deadline = time.monotonic() + seconds
        while True:
            text = self.look()
            if wanted in text if isinstance(wanted, str) else wanted(text):
                return text
            assert time.monotonic() < deadline, f"{wanted!r} did not appear in:\n{text}"

    def kill(self) -> None:
        """End the program if it runs, however long a busy machine needs for that."""
        if self.process.isalive():
            self.process.kill(signal.SIGKILL)
            self.process.wait()
        self.process.close()

    def wait_end(self) -> int:
        self.process.expect(pexpect.EOF)
        self.process.close()
        status: int = self.process.exitstatus
        return status
