"""Output to the terminal: text on stdout, notices on stderr, a status line."""

import sys

from swiftchat.chat.terminal.sanitize import sanitize


def write(text: str) -> None:
    """Write text to stdout and flush."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_notice(text: str) -> None:
    """Print one line to stderr, sanitized."""
    print(sanitize(text), file=sys.stderr, flush=True)


class StatusLine:
    """One line that is overwritten and finally erased.

    It shows nothing if stdout is not a terminal or `may_erase` is false.
    """

    def __init__(self, may_erase: bool) -> None:
        self._is_enabled = sys.stdout.isatty() and may_erase
        self._is_shown = False

    def show(self, label: str, done: int, total: int) -> None:
        if self._is_enabled:
            self._is_shown = True
            write(f"\r\x1b[K{sanitize(label)} {100 * done // max(1, total)} %")

    def clear(self) -> None:
        if self._is_shown:
            self._is_shown = False
            write("\r\x1b[K")
