"""Writing to the terminal: text on stdout, notices on stderr, a status line."""

import sys

from swiftchat.chat.terminal.sanitize import sanitize


def write(text: str) -> None:
    """Text to stdout, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def say(text: str) -> None:
    """A line of the program's own, apart from answers: on stderr."""
    print(sanitize(text), file=sys.stderr, flush=True)


class StatusLine:
    """One line that is written over and then erased; nothing where that cannot or may not be."""

    def __init__(self, may_erase: bool) -> None:
        self._is_able = sys.stdout.isatty() and may_erase
        self._is_shown = False

    def show(self, label: str, done: int, total: int) -> None:
        if self._is_able:
            self._is_shown = True
            write(f"\r\x1b[K{sanitize(label)} {100 * done // max(1, total)} %")

    def clear(self) -> None:
        if self._is_shown:
            self._is_shown = False
            write("\r\x1b[K")
