"""The user's pager, for output that is higher than the window."""

import contextlib
import io
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import accumulate
from typing import TextIO

from swiftchat.chat.terminal.child import plain_text
from swiftchat.chat.terminal.keyboard import Keyboard
from swiftchat.chat.terminal.output import write

_LESS = {"LESS": "FRX", "LV": "-c"}  # colors, and the text stays on the screen; as git sets them


@contextlib.contextmanager
def paged(keyboard: Keyboard) -> Iterator[None]:
    """Record what is printed, and show it at the end: in a pager if the window is too low for it.

    stdout is a terminal. The pager is $PAGER, or less; without one the output is printed.
    """
    recorded = _Recorder(sys.stdout)
    is_same = sys.stderr.isatty()
    stderr = contextlib.redirect_stderr(recorded) if is_same else contextlib.nullcontext()
    try:
        with contextlib.redirect_stdout(recorded), stderr:
            yield
    finally:
        text = recorded.text
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        if not (_is_higher(text, columns, rows) and _page(text, keyboard)):
            write(text)


class _Recorder(io.TextIOWrapper):
    """Output for a terminal that is kept."""

    def __init__(self, terminal: TextIO) -> None:
        self._kept = io.BytesIO()
        super().__init__(self._kept, terminal.encoding, "replace", newline="", write_through=True)
        self._terminal = terminal

    @property
    def text(self) -> str:
        return self._kept.getvalue().decode(self.encoding, "replace")

    def fileno(self) -> int:
        return self._terminal.fileno()

    def isatty(self) -> bool:
        return True


def _is_higher(text: str, columns: int, rows: int) -> bool:
    """Return whether a text leaves no row of the window for the next prompt."""
    # Imported here: the first prompt needs none of it.
    from rich.cells import cell_len

    lines = plain_text(text).splitlines()
    heights = accumulate(max(1, -(-cell_len(line) // max(1, columns))) for line in lines)
    return any(height >= rows for height in heights)


def _page(text: str, keyboard: Keyboard) -> bool:
    """Show a text in the pager; return whether there is one."""
    try:
        command = shlex.split(os.environ.get("PAGER", "less"))
    except ValueError:  # open quotes
        return False
    if not command:
        return False
    # The pager has the terminal, and Ctrl-C is for it.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        with keyboard.lent():
            subprocess.run(command, input=text.encode("utf-8", "replace"), env=_LESS | os.environ)
    except OSError:
        return False
    finally:
        signal.signal(signal.SIGINT, before)
    return True
