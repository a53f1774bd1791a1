"""Processes that are forked from one that has imported the program, so that a start costs little.

A forked process replaces what a new interpreter would set up: standard streams, open files, signal
handlers, `sys.argv`. `fork_children` lets the program start its own worker and rank processes in
the same way.
"""

import contextlib
import fcntl
import importlib
import os
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

_MAX_FDS = 1024
_POLL_S = 0.005


class ForkedProcess:
    """The part of `subprocess.Popen` that starts a worker or a rank: `python -m MODULE …`."""

    def __init__(
        self,
        command: Sequence[str],
        pass_fds: Sequence[int] = (),
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        start_new_session: bool = False,
    ) -> None:
        assert command[1:3] == ["-P", "-m"] and stdin == subprocess.DEVNULL
        self.returncode: int | None = None
        self._lock = threading.Lock()  # the thread that reads from the worker waits for it too
        self.pid = os.fork()
        if self.pid == 0:
            if start_new_session:
                os.setsid()
            streams = (os.open(os.devnull, os.O_RDONLY), stdout.fileno(), stderr.fileno())
            module = importlib.import_module(command[3])
            run_and_exit(module.main, ["-m", *command[4:]], streams, pass_fds)

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                found, status = os.waitpid(self.pid, os.WNOHANG)
                if found:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(_POLL_S)
        return status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork_children() -> None:
    """Replace `subprocess` where the program starts its engine processes."""
    from swiftchat.engine.api import local
    from swiftchat.engine.ranks import spawn

    forking = SimpleNamespace(
        Popen=ForkedProcess,
        DEVNULL=subprocess.DEVNULL,
        TimeoutExpired=subprocess.TimeoutExpired,
    )
    local.subprocess = spawn.subprocess = forking  # type: ignore[assignment]


def fork_in_terminal(
    main: Callable[[], object], arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[int, int]:
    """Run `main` in a forked process with a terminal of its own; return its id and the terminal."""
    own, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    pid = os.fork()
    if pid == 0:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        os.environ.update(environment)
        run_and_exit(main, ["swiftchat", *arguments], (theirs, theirs, theirs))
    os.close(theirs)
    return pid, own


def run_and_exit(
    main: Callable[[], object],
    argv: Sequence[str],
    streams: tuple[int, int, int],
    pass_fds: Sequence[int] = (),
) -> NoReturn:
    """Become a new process: with these arguments and files only, and no handlers of signals."""
    code = 1
    try:
        _replace_files(streams, pass_fds)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        sys.argv = list(argv)
        main()
        code = 0
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    except BaseException:  # noqa: BLE001  (as the interpreter would)
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _replace_files(streams: tuple[int, int, int], pass_fds: Sequence[int]) -> None:
    copies = [os.dup(fd) for fd in streams]
    for fd, copy in enumerate(copies):
        os.dup2(copy, fd)
    begin = 3
    for kept in sorted(pass_fds):
        os.closerange(begin, kept)
        begin = kept + 1
    os.closerange(begin, _MAX_FDS)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # noqa: SIM115
        2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )
