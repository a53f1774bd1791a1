"""The state of child processes: stopped by a signal, exit reason, ending with the parent."""

import os
import signal
import sys
from typing import IO

_MAX_OUTPUT_BYTES = 2000
_PR_SET_PDEATHSIG = 1


def stop_signal(pid: int) -> str | None:
    """Return the name of the signal that has stopped a child process, None if it is not stopped.

    Also None for a child that has ended, and on systems without `waitid`.
    """
    if not hasattr(os, "waitid"):  # macOS, before Python 3.13
        return None
    try:
        # WNOWAIT leaves the state in place for later calls and for `Popen.wait`.
        found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else _signal_name(found.si_status)


def exit_reason(status: int, output: IO[bytes]) -> str:
    """Describe an exit status of `subprocess`, with the last line of the child's `output`."""
    how = f"signal {-status} ({_signal_name(-status)})" if status < 0 else f"exit status {status}"
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _MAX_OUTPUT_BYTES))
    lines = output.read().decode(errors="replace").strip().splitlines()
    return f"{how}: {lines[-1]}" if lines else how


def exit_with_parent(parent: int) -> None:
    """Have the Linux kernel kill this process when the thread that started it ends.

    Exit at once if the process `parent` has ended before the call.
    """
    if sys.platform == "linux":
        import ctypes  # not at the top: the parent imports this module and does not need ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _signal_name(number: int) -> str:
    names = {known.value: known.name for known in signal.Signals}
    return names.get(number, "unknown")  # real-time signals have no name
