"""`swiftchat serve` as a process, and programs that use its engine."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryFile

from tests.support.worker_processes import wait_until

SWIFTCHAT = (sys.executable, "-m", "swiftchat.chat")
START_S = 90.0
END_S = 60.0
_MAX_LOG_BYTES = 1 << 20


def swiftchat(*args: str, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run the program to its end."""
    return subprocess.run(
        [*SWIFTCHAT, *args], input=stdin, capture_output=True, env=os.environ | environ
    )


class ServeProcess:
    """`swiftchat serve` with its log; ended by the context manager."""

    def __init__(self, args: tuple[str, ...], environ: Mapping[str, str]) -> None:
        self._output = TemporaryFile()  # noqa: SIM115  (read until the object is gone)
        self.process = subprocess.Popen(
            [*SWIFTCHAT, "serve", *args],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=os.environ | environ,
        )

    @property
    def log(self) -> str:
        # `pread`, because the process writes at the position that `read` would move.
        return os.pread(self._output.fileno(), _MAX_LOG_BYTES, 0).decode()

    def wait_for(self, text: str) -> str:
        """Wait until the log matches a regular expression; return its group, or all of it."""

        def is_logged() -> bool:
            assert self.process.poll() is None or re.search(text, self.log), self.log
            return re.search(text, self.log) is not None

        wait_until(is_logged, START_S)
        found = re.search(text, self.log)
        assert found is not None
        return found[found.re.groups]

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(END_S)


@contextmanager
def serve_process(*args: str, ready: bool = True, **environ: str) -> Iterator[ServeProcess]:
    """Start `swiftchat serve` and, if `ready`, wait until the model is loaded."""
    process = ServeProcess(args, environ)
    try:
        if ready:
            process.wait_for("is ready")
        yield process
    finally:
        process.process.kill()
        process.process.wait()
