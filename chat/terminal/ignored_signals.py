"""Signals whose exception was raised where Python ignores exceptions."""

import signal
import sys
import threading

_RETRY_S = 0.05


def retry_ignored_signals() -> None:
    """Send SIGINT and SIGTERM again when their exceptions have ended nothing.

    Python prints and drops an exception that a signal handler raises in a finalizer or in a weak
    reference's callback, such as those of `import`. Ctrl-C would be lost now and then.
    """
    before = sys.unraisablehook

    def retry(unraisable: "sys.UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            _send_later(signal.SIGINT)
        elif issubclass(unraisable.exc_type, SystemExit):
            _send_later(signal.SIGTERM)
        else:
            before(unraisable)

    sys.unraisablehook = retry


def _send_later(number: signal.Signals) -> None:
    # Sent at once, its exception would be raised in the hook and be ignored again.
    main_thread_id = threading.main_thread().ident
    timer = threading.Timer(_RETRY_S, signal.pthread_kill, (main_thread_id, number))
    timer.daemon = True
    timer.start()
