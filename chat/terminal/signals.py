"""Signals as exceptions: Ctrl-C as `KeyboardInterrupt`, SIGTERM and SIGHUP as `SystemExit`.

Python lets a signal handler raise its exception anywhere. There are two places where that does
harm. During an import the exception may leave the import lock of all threads locked. In finalizers
and callbacks of weak references Python prints the exception and drops it. In both cases the signal
is sent again a little later.
"""

import signal
import sys
import threading
from types import FrameType

_RETRY_S = 0.05
_IMPORT_FILES = "<frozen importlib"


def install_signal_handlers() -> None:
    """Raise exceptions for SIGINT, SIGTERM and SIGHUP, except for those that are ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, _raise)
    sys.unraisablehook = _retry_dropped


def _raise(number: int, frame: FrameType | None) -> None:
    if _is_importing(frame):
        _send_later(number)
    elif number == signal.SIGINT:
        raise KeyboardInterrupt
    else:
        # A Ctrl-C that arrives meanwhile must not replace this exit.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
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
