"""A program that a tool starts: without a terminal, with limits of time and of output."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from swiftchat.errors import UsageError
from swiftchat.errors.interpreter import guarded

_CHUNK_BYTES = 1 << 16
_POLL_S = 0.05


@dataclass(frozen=True)
class Ended:
    """What a program has written to stdout and stderr, and how it ended.

    `status` is its exit status, the negative number of a signal, or None if a limit ended it, which
    `limit` names.
    """

    output: bytes
    status: int | None
    limit: str = ""


def run_program(
    command: list[str],
    folder: str,
    *,
    limit_s: float,
    max_bytes: int,
    text: bytes = b"",
    env: Mapping[str, str] | None = None,
) -> Ended:
    """Run a program in a folder, with a short text on stdin, and end all that it has started.

    It cannot read the terminal. `env` is added to the environment. Raises `UsageError` if it cannot
    be started; `KeyboardInterrupt` ends it.
    """
    try:
        process = subprocess.Popen(
            guarded(command),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise UsageError(f"the program cannot be started: {error}", "try another one") from error
    assert process.stdin is not None and process.stdout is not None
    with process.stdout:
        try:
            with contextlib.suppress(OSError), process.stdin as stdin:
                stdin.write(text)
            output, limit = _output(process, process.stdout.fileno(), limit_s, max_bytes)
        finally:
            _end_all(process)
    return Ended(output, None if limit else process.returncode, limit)


def _output(
    process: "subprocess.Popen[bytes]", source: int, limit_s: float, max_bytes: int
) -> tuple[bytes, str]:
    """Return what the program writes until it ends, and the limit that it has reached.

    What it leaves running may hold its output open, so its end counts, not that of the output.
    """
    output = bytearray()
    os.set_blocking(source, False)
    end_s = time.monotonic() + limit_s
    while True:
        has_ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        for chunk in _chunks(source, 0 if has_ended else _POLL_S):
            output += chunk
            if len(output) > max_bytes:
                return bytes(output[:max_bytes]), f"more than {max_bytes >> 10} KiB of output"
            if time.monotonic() > end_s:
                break
        if has_ended:
            return bytes(output), ""
        if time.monotonic() > end_s:
            return bytes(output), f"{limit_s:.0f} s"


def _chunks(source: int, wait_s: float) -> Iterator[bytes]:
    """Yield what can be read now; wait for the beginning of it."""
    while select.select([source], [], [], wait_s)[0]:
        try:
            chunk = os.read(source, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not chunk:  # closed by the program, which may go on
            select.select([], [], [], wait_s)
            return
        yield chunk
        wait_s = 0


def _end_all(process: "subprocess.Popen[bytes]") -> None:
    """End the program, its children, and what it has left in its session.

    The program is not waited for before: its number still belongs to it.
    """
    # Imported here, because it would delay the prompt.
    import psutil

    found = []
    with contextlib.suppress(psutil.Error):
        found += [one.pid for one in psutil.Process(process.pid).children(recursive=True)]
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == process.pid:
                found.append(pid)
    for pid in {process.pid, *found}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
