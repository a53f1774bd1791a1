"""The function of `subprocess` that starts a process, replaced by one that forks what it can."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.support.forks.start import SCRIPTS, Start, current_umask, ignored_signals

MAX_FDS = 250  # that a message can have


class Forks(Protocol):
    """Forks programs."""

    def can_fork(self, command: Sequence[str], environment: dict[str, str]) -> bool:
        """Return whether a fork does what the command would do."""

    def fork(self, start: Start, fds: Sequence[int]) -> int:
        """Start a program with these open files; return the id of the process, a child of this."""


def replace_fork_exec(forks: Forks) -> None:
    """Let `subprocess` fork what can be forked, in this process."""
    original: Callable[..., int] = subprocess._fork_exec  # type: ignore[attr-defined]

    def fork_exec(*arguments: Any) -> int:
        found = _start_of(arguments)
        if found is None or not forks.can_fork(found[0].command, found[0].environment):
            return original(*arguments)
        return forks.fork(*found)

    subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]


def _start_of(arguments: Sequence[Any]) -> tuple[Start, list[int]] | None:
    """Return what the arguments of `_posixsubprocess.fork_exec` mean; None for unusual ones."""
    command, executables, close_fds, pass_fds, folder, environment = arguments[:6]
    stdin, _, _, stdout, _, stderr = arguments[6:12]
    error_pipe, _, new_session, group, *ids, umask, preexec = arguments[13:22]
    plain = close_fds and group == -1 and not any(n is not None for n in ids) and preexec is None
    texts = [os.fsdecode(part) for part in command]
    if not plain or executables != (os.fsencode(texts[0]),):
        return None
    if texts[0] in SCRIPTS:  # as Linux does it: its first line names Python
        texts = [sys.executable, *texts]
    pairs = [*os.environb.items()]
    if environment is not None:
        pairs = [tuple(pair.split(b"=", 1)) for pair in environment]
    path = os.fsdecode(folder) if folder is not None else str(Path.cwd())
    streams = [fd if fd != -1 else number for number, fd in enumerate((stdin, stdout, stderr))]
    passed = sorted(set(pass_fds) - {error_pipe, 0, 1, 2})
    if not Path(path).is_dir() or len(passed) + 3 > MAX_FDS:
        return None
    start = Start(
        tuple(texts),
        {os.fsdecode(name): os.fsdecode(value) for name, value in pairs},
        path,
        current_umask() if umask < 0 else umask,
        (0, 1, 2, *passed),
        ignored_signals(),
        bool(new_session),
    )
    return start, [*streams, *passed]
