"""A program in a pty with an emulated screen."""

import contextlib
import os
import re
import time
from collections.abc import Callable

import pexpect
import pyte


class Terminal:
    """A program in a pty with an emulated screen."""

    def __init__(
        self, command: str, args: list[str], columns: int = 80, rows: int = 24, **env: str
    ) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        # pyte does not report its cursor position; prompt_toolkit would wait for the report.
        quiet = {"PROMPT_TOOLKIT_NO_CPR": "1"}
        environment = {**os.environ, "TERM": "xterm-256color", **quiet, **env}
        self.process = pexpect.spawn(
            command, args, dimensions=(rows, columns), env=environment, timeout=20
        )
        self.raw = b""

    def type(self, text: str) -> None:
        """Type keys; if the last one is Enter, at a prompt: elsewhere Enter does not send."""
        if text.endswith("\r"):
            self.wait_for(lambda screen: self.is_at_prompt)
        self.type_now(text)

    def type_now(self, text: str) -> None:
        """Type keys whatever the program does."""
        self.process.send(text)

    @property
    def is_at_prompt(self) -> bool:
        """Whether the cursor is on a line that begins with a prompt."""
        line = self.screen.display[self.screen.cursor.y]
        return re.match(r"(You )?>>> |\.\.\. |\$ |\(reverse-i-search\)", line) is not None

    def look(self) -> str:
        """Feed new output to the screen and return the screen's text."""
        with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF):
            piece = self.process.read_nonblocking(65536, timeout=0.05)
            self.raw += piece
            self._stream.feed(piece)
        return "\n".join(line.rstrip() for line in self.screen.display)

    def wait_for(self, wanted: str | Callable[[str], bool], seconds: float = 15) -> str:
        deadline = time.monotonic() + seconds
        while True:
            text = self.look()
            if wanted in text if isinstance(wanted, str) else wanted(text):
                return text
            assert time.monotonic() < deadline, f"{wanted!r} did not appear in:\n{text}"

    def wait_end(self) -> int:
        self.process.expect(pexpect.EOF)
        self.process.close()
        status: int = self.process.exitstatus
        return status
