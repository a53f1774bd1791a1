"""Input for terminals without cursor movement: the terminal edits the line."""

import os
import re
import sys
from collections.abc import Callable

from swiftchat.chat.repl.message import is_unfinished
from swiftchat.chat.terminal.output import write

_LINE_END = re.compile(rb"\r\n|[\r\n]")  # Enter is \r if it was pressed during an answer


class PlainPrompt:
    """Reads messages with the interface of `InputLine`, without key bindings."""

    def __init__(self) -> None:
        self._buffer = b""  # read from stdin, but not yet returned

    def prompt(self, default: str = "", pre_run: Callable[[], None] | None = None) -> str:
        """Return the next message; an empty line returns `default`, which is shown before.

        Raises `EOFError` at Ctrl-D and `KeyboardInterrupt` at Ctrl-C.
        """
        if default:
            write(f"{default}\n(Enter sends it again)\n")
        write("You >>> ")
        if pre_run is not None:
            pre_run()
        text = self._read_line()
        while is_unfinished(text):
            write("... ")
            text = f"{text.removesuffix(chr(92))}\n{self._read_line()}"
        return text or default

    def _read_line(self) -> str:
        while not (end := _LINE_END.search(self._buffer)):
            data = os.read(sys.stdin.fileno(), 1 << 16)
            if not data:
                raise EOFError
            self._buffer += data
        line, self._buffer = self._buffer[: end.start()], self._buffer[end.end() :]
        return line.decode("utf-8", "replace")
