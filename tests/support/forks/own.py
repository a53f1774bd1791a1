"""Forks of the process that has the image, and of the programs that are forked from it."""

import fcntl
import gc
import os
import resource
import struct
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.support.forks.fork_exec import replace_fork_exec
from tests.support.forks.process import Image
from tests.support.forks.start import (
    Start,
    can_be_forked,
    current_umask,
    ignored_signals,
    is_limited,
)

# Of the address space, of which a fork gets a copy: the renderer of templates has a limit of 1 GiB.
_MAX_BYTES = 896 << 20


class OwnForks:
    """`Forks` of this process."""

    def __init__(self, image: Image) -> None:
        self.image = image

    def can_fork(self, command: Sequence[str], environment: dict[str, str]) -> bool:
        if _has_foreign_threads() or (is_limited(command) and _address_space_bytes() > _MAX_BYTES):
            return False
        return can_be_forked(command, environment, self.image.environment, self.image.variables)

    def fork(self, start: Start, fds: Sequence[int]) -> int:
        return self.fork_main(start, fds, None)

    def fork_main(self, start: Start, fds: Sequence[int], main: Callable[[], object] | None) -> int:
        """Fork a process that runs `main` instead of the command; return its id."""
        collects = gc.isenabled()
        gc.disable()
        pid = os.fork()
        if pid == 0:
            # Objects of the parent that are found to be garbage would close their files, whose
            # numbers are those of other files here.
            gc.freeze()
            gc.enable()
            self.image.become(start, fds, main)
        if collects:
            gc.enable()
        return pid


@cache
def own_forks() -> OwnForks:
    """Import the program in this process, which forks from then on what can be forked."""
    forks = OwnForks(Image())
    forks.image.add_engine()
    replace_fork_exec(forks)
    return forks


def _has_foreign_threads() -> bool:
    """Return whether libraries have threads of their own, as torch has once it computes.

    They would not exist in a forked process, whose libraries would wait for them.
    """
    return len(list(Path("/proc/self/task").iterdir())) > threading.active_count()


def _address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def fork_in_terminal(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    size: tuple[int, int],
    fork: Callable[[Start, Sequence[int]], int],
) -> tuple[int, int]:
    """Fork a program in a terminal of its own with `size` rows and columns.

    Return the id of the process and the terminal's file descriptor.
    """
    own, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    start = Start(
        tuple(command),
        dict(environment),
        folder,
        current_umask(),
        ignored_signals=ignored_signals(),
        new_session=True,
        terminal=True,
    )
    try:
        return fork(start, (theirs, theirs, theirs)), own
    finally:
        os.close(theirs)
