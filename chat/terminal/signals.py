"""Signals as exceptions: Ctrl-C as `KeyboardInterrupt`, SIGTERM and SIGHUP as `SystemExit`.

Python lets a signal handler raise its exception anywhere. There are two places where that does
harm. During an import the exception may leave the import lock of all threads locked. In finalizers
and callbacks of weak references Python prints the exception and drops it. In both cases the signal
is sent again a little later.

In a task of an event loop the exception would be reported as the task's; `delayed_exit` waits until
the loop has ended.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_EXIT_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# During an exit: a Ctrl-C must not replace it, and a closed terminal may be reported twice, by the
# system and by a shell.
_BLOCKED_AT_EXIT = (signal.SIGINT, signal.SIGHUP)
_RETRY_S = 0.05
_IMPORT_FILES = "<frozen importlib"


def install_signal_handlers() -> None:
    """Raise exceptions for SIGINT, SIGTERM and SIGHUP, except for those that are ignored."""
    for number in (signal.SIGINT, *_EXIT_SIGNALS):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, _raise)
    sys.unraisablehook = _retry_dropped


@contextlib.contextmanager
def delayed_exit(end_soon: Callable[[], bool]) -> Iterator[None]:
    """Raise the exceptions of SIGTERM and SIGHUP at the end of the context.

    At the signal `end_soon` is called, which returns whether the context will end soon; if not, the
    exception is raised at once. Signals without our handler keep theirs.
    """
    received: list[int] = []

    def delay(number: int, frame: FrameType | None) -> None:
        if end_soon():
            received.append(number)
        else:
            _raise(number, frame)

    delayed = [number for number in _EXIT_SIGNALS if signal.getsignal(number) is _raise]
    for number in delayed:
        signal.signal(number, delay)
    try:
        yield
    finally:
        for number in delayed:
            signal.signal(number, _raise)
        if received:
            signal.raise_signal(received[0])


def hang_up() -> None:
    """Have the main thread end as by SIGHUP, because the terminal was closed.

    Reading and writing may fail before the system sends the signal. Nothing happens if it is
    ignored, or not handled. Any thread may call this.
    """
    main_thread_id = threading.main_thread().ident
    if main_thread_id is not None and callable(signal.getsignal(signal.SIGHUP)):
        signal.pthread_kill(main_thread_id, signal.SIGHUP)


def _raise(number: int, frame: FrameType | None) -> None:
    if _is_importing(frame):
        _send_later(number)
    elif number == signal.SIGINT:
        raise KeyboardInterrupt
    else:
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_AT_EXIT)
        raise SystemExit(128 + number)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORT_FILES):
            return True
        frame = frame.f_back
    return False


def _retry_dropped(unraisable: "sys.UnraisableHookArgs") -> None:
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _send_later(signal.SIGINT)
    elif issubclass(unraisable.exc_type, SystemExit):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED_AT_EXIT)  # there is no exit yet
        code = getattr(unraisable.exc_value, "code", None)
        _send_later(signal.SIGHUP if code == 128 + signal.SIGHUP else signal.SIGTERM)
    else:
        sys.__unraisablehook__(unraisable)


def _send_later(number: int) -> None:
    # Sent at once, its exception would be raised in the same place.
    main_thread_id = threading.main_thread().ident
    timer = threading.Timer(_RETRY_S, signal.pthread_kill, (main_thread_id, number))
    timer.daemon = True
    timer.start()
