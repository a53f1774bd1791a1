"""Terminal echo: hide typed keys while an answer streams, and handle Ctrl-Z."""

import contextlib
import signal
import sys
import termios
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def hide_typing(before_stop: Callable[[], None] | None = None) -> Iterator[None]:
    """Turn off echo and keep typed keys for the next prompt; Ctrl-C still raises SIGINT.

    Ctrl-Z calls `before_stop`, which should erase redrawn rows, then restores the terminal's
    settings and suspends the process; after `fg` echo is off again.
    """
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = termios.tcgetattr(descriptor)
    quiet[0] &= ~termios.ICRNL  # prompt_toolkit expects Enter as a carriage return
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    quiet[3] |= termios.NOFLSH  # otherwise Ctrl-C discards the keys typed before it

    def stop(number: int, frame: object) -> None:
        if before_stop is not None:
            before_stop()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)  # returns after `fg`
        signal.signal(signal.SIGTSTP, stop)
        termios.tcsetattr(descriptor, termios.TCSANOW, quiet)

    old_stop = signal.getsignal(signal.SIGTSTP)
    if old_stop is not signal.SIG_IGN:  # a shell without job control could not resume us
        signal.signal(signal.SIGTSTP, stop)
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, old_stop)
        with contextlib.suppress(termios.error):  # the terminal may be closed
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
