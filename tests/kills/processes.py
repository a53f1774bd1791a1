"""The environment of a round: its folders, all processes in it, and the state of its terminal."""

import contextlib
import os
import re
import signal
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.forks import own
from tests.support.forks.own import own_forks
from tests.support.forks.start import Start

_POLL_S = 0.02
# The private modes that are on in a new terminal: the cursor and line wrapping.
_ON_AT_START = {"25", "7"}


def folders(home: Path) -> dict[str, str]:
    """Create the user's folders below `home`; return the variables that name them."""
    names = {f"XDG_{name.upper()}_HOME": name for name in ("data", "config", "cache", "state")}
    names |= {"XDG_RUNTIME_DIR": "run", "TMPDIR": "tmp", "HF_HOME": "hub"}
    for name in names.values():
        (home / name).mkdir(mode=0o700, exist_ok=True)
    return {variable: str(home / name) for variable, name in names.items()}


def fork_in_terminal(
    main: Callable[[], object], arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[int, int]:
    """Run `main` as swiftchat in a terminal of its own; return its process id and the terminal."""

    def fork(start: Start, fds: Sequence[int]) -> int:
        return own_forks().fork_main(start, fds, main)

    command = ("swiftchat", *arguments)
    return own.fork_in_terminal(command, os.environ | environment, str(Path.cwd()), (24, 80), fork)


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def orphans(limit_s: float) -> list[str]:
    """Wait until this process has no descendants; end and return those that remain."""
    deadline = time.monotonic() + limit_s
    while running := _descendants():
        if time.monotonic() > deadline:
            for process in running:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            return [f"process {process.pid}" for process in running]
        time.sleep(_POLL_S)
    return []


def _descendants() -> list[psutil.Process]:
    """Return the descendants that run, and reap those that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return psutil.Process().children(recursive=True)


def child_of(pid: int) -> int | None:
    """Return the only child of a process, None if it has none or has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            if child.status() != psutil.STATUS_ZOMBIE:
                return child.pid
    return None


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def changed_settings(descriptor: int, output: bytes) -> list[str]:
    """Return the settings of a terminal that are not those of a new one.

    `output` is all that programs have written to it.
    """
    fresh, other = os.openpty()
    expected, found = termios.tcgetattr(fresh), termios.tcgetattr(descriptor)
    os.close(fresh)
    os.close(other)
    changed = ["the mode of the terminal"] if found[:4] != expected[:4] else []
    modes = {
        mode: action == "h"
        for modes, action in re.findall(r"\x1b\[\?([\d;]+)([hl])", output.decode("latin-1"))
        for mode in modes.split(";")
    }
    changed += [f"mode {name}" for name, on in modes.items() if on != (name in _ON_AT_START)]
    return changed


def stop_for(pid: int, seconds: float) -> None:
    """Stop a process for this time, without continuing it."""
    send(pid, signal.SIGSTOP)
    time.sleep(seconds)
