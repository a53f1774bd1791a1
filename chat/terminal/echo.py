"""Terminal echo: hide typed keys while an answer streams, and handle Ctrl-Z."""

import contextlib
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from typing import Any

from swiftchat.chat.terminal.streams import is_in_foreground


@contextlib.contextmanager
def hide_typing(before_stop: Callable[[], None] | None = None) -> Iterator[None]:
    """Turn off echo and keep typed keys for the next prompt; Ctrl-C still raises SIGINT.

    Ctrl-Z calls `before_stop`, which should erase redrawn rows, then restores the terminal's
    settings and suspends the process; after `fg` echo is off again. A background process leaves
    the terminal alone: the system would stop it.
    """
    if not sys.stdin.isatty():
        yield
        return
    echo = _Echo(sys.stdin.fileno(), before_stop or (lambda: None))
    old_stop, old_continue = (signal.getsignal(n) for n in (signal.SIGTSTP, signal.SIGCONT))
    if old_stop is not signal.SIG_IGN:  # a shell without job control could not resume us
        signal.signal(signal.SIGTSTP, echo.stop)
    signal.signal(signal.SIGCONT, echo.hide)
    echo.hide()
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, old_stop)
        signal.signal(signal.SIGCONT, old_continue)
        echo.show()


class _Echo:
    """The settings of a terminal, changed only while this process is in its foreground."""

    def __init__(self, descriptor: int, before_stop: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._before_stop = before_stop
        self._before: list[Any] | None = None  # while it is hidden

    def hide(self, *_signal: object) -> None:
        """Turn off echo; also the handler of SIGCONT, which `fg` sends."""
        if self._before is None and is_in_foreground(self._descriptor):
            self._before = termios.tcgetattr(self._descriptor)
            quiet = termios.tcgetattr(self._descriptor)
            quiet[0] &= ~termios.ICRNL  # prompt_toolkit expects Enter as a carriage return
            quiet[3] &= ~(termios.ECHO | termios.ICANON)
            quiet[3] |= termios.NOFLSH  # otherwise Ctrl-C discards the keys typed before it
            termios.tcsetattr(self._descriptor, termios.TCSANOW, quiet)

    def show(self) -> None:
        """Restore the settings."""
        before, self._before = self._before, None
        if before is not None and is_in_foreground(self._descriptor):
            with contextlib.suppress(termios.error):  # the terminal may be closed
                termios.tcsetattr(self._descriptor, termios.TCSANOW, before)

    def stop(self, number: int, frame: object) -> None:
        """Suspend the process; returns after `fg` or `bg`."""
        self._before_stop()
        self.show()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self.stop)
        self.hide()
