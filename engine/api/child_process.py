"""A process and the one that started it: whether the child was stopped, and how either ends."""

import os
import signal
import sys
from typing import IO

_LAST_WORDS_BYTES = 2000
_PR_SET_PDEATHSIG = 1


def stop_signal(pid: int) -> str | None:
    """The signal that holds this child where it is, as long as it does; None where it runs.

    A child that ended is none that is held. Where the system cannot be asked, None.
    """
    if not hasattr(os, "waitid"):  # macOS, before Python 3.13
        return None
    try:
        # WNOWAIT: that it was stopped stays known, and its end is left to who waits for that.
        found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else _signal_name(found.si_status)


def how_it_ended(status: int, output: IO[bytes]) -> str:
    """`subprocess`'s status in words, and the last line the child wrote to its `output`."""
    how = f"signal {-status} ({_signal_name(-status)})" if status < 0 else f"exit status {status}"
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _LAST_WORDS_BYTES))
    words = output.read().decode(errors="replace").strip().splitlines()
    return f"{how}: {words[-1]}" if words else how


def end_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends, where it can."""
    if sys.platform == "linux":
        import ctypes  # not at the top: who starts such a process does not need it

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # gone before that
        os._exit(0)


def _signal_name(number: int) -> str:
    names = {known.value: known.name for known in signal.Signals}
    return names.get(number, "unknown")  # one of the real-time signals
