"""The input line of a terminal that cannot move its cursor: the terminal's own, line by line."""

import os
import re
import sys
from collections.abc import Callable

from swiftchat.chat.repl.message import is_unfinished
from swiftchat.chat.terminal.output import write

_LINE_END = re.compile(rb"\r\n|[\r\n]")  # Enter is \r if it was pressed while an answer came


class PlainPrompt:
    """Reads messages as prompt_toolkit's session does, without keys of its own."""

    def __init__(self) -> None:
        self._typed = b""  # and not yet read

    def prompt(self, default: str = "", pre_run: Callable[[], None] | None = None) -> str:
        """The next message; an empty one stands for `default`, which is shown.

        Raises `EOFError` at Ctrl-D, and lets Ctrl-C pass.
        """
        if default:
            write(f"{default}\n(Enter sends it again)\n")
        write("You >>> ")
        if pre_run is not None:
            pre_run()
        text = self._line()
        while is_unfinished(text):
            write("... ")
            text = f"{text.removesuffix(chr(92))}\n{self._line()}"
        return text or default

    def _line(self) -> str:
        while not (end := _LINE_END.search(self._typed)):
            typed = os.read(sys.stdin.fileno(), 1 << 16)
            if not typed:
                raise EOFError
            self._typed += typed
        line, self._typed = self._typed[: end.start()], self._typed[end.end() :]
        return line.decode("utf-8", "replace")
