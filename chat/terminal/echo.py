"""The terminal while nobody is asked to type: what is typed waits unseen, and Ctrl-Z works."""

import contextlib
import signal
import sys
import termios
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def hide_typing(before_stop: Callable[[], None] | None = None) -> Iterator[None]:
    """Keep what is typed meanwhile off the screen and for the next prompt; Ctrl-C still signals.

    Ctrl-Z calls `before_stop`, which should erase what is drawn over, and leaves the terminal to
    the shell as it was; `fg` takes it again.
    """
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = termios.tcgetattr(descriptor)
    quiet[0] &= ~termios.ICRNL  # Enter stays what prompt_toolkit takes for Enter
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    quiet[3] |= termios.NOFLSH  # else Ctrl-C would throw away what was typed before it

    def stop(number: int, frame: object) -> None:
        if before_stop is not None:
            before_stop()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)  # here it stands still until `fg`
        signal.signal(signal.SIGTSTP, stop)
        termios.tcsetattr(descriptor, termios.TCSANOW, quiet)

    old_stop = signal.getsignal(signal.SIGTSTP)
    if old_stop is not signal.SIG_IGN:  # a shell without job control could never go on
        signal.signal(signal.SIGTSTP, stop)
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, old_stop)
        with contextlib.suppress(termios.error):  # the terminal may have been closed
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
