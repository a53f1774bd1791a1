"""A shell command on a terminal of its own, whose output is shown and recorded.

The command gets a pseudo-terminal: full-screen programs, colors, job control and Ctrl-C work as in
a shell. Its session is led by a second shell, which runs the command in the foreground and then
stops until it is continued. Meanwhile what the command has not read of the keys is read back, and
what the command has left in the background gets no SIGHUP when the leader ends.
"""

import codecs
import contextlib
import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import tty
from collections.abc import Callable, Iterator

from swiftchat.errors import UsageError

# What the leader itself says goes nowhere. dash refuses to exit once while a job is stopped.
_LEADER = (
    'set -m; trap : INT; exec 9>&2 2>/dev/null; "$0" -c "$1" 2>&9 9>&-; status=$?; '
    "kill -STOP $$; exit $status; exit $status"
)
_CHUNK_BYTES = 1 << 16
_POLL_S = 0.03
_REST_S = 0.05  # for what is on its way through the pseudo-terminal
_ALTERNATE_SCREEN = re.compile(
    r"\x1b\[\?(?:1049|1047|47)h.*?(?:\x1b\[\?(?:1049|1047|47)l|\Z)", re.S
)
_SEQUENCES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x07|\x1b\\|\Z)|[ -/]*[0-~]|\Z)"
    r"|[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]",
    re.S,
)


class ShellCommand:
    """Runs a command in the user's shell.

    `show` gets the output as it arrives. Afterwards `status` is its exit status, 128 more than
    the signal that ended it, and `unread` the keys that it has left. Raises `UsageError` if there
    is no shell, and ends the command at `KeyboardInterrupt`.
    """

    def __init__(self, command: str, show: Callable[[str], None]) -> None:
        self.status = 0
        self.unread = b""
        self._show = show
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = bytearray()  # keys that the pseudo-terminal has no room for yet
        shell = os.environ.get("SHELL") or "/bin/sh"
        if shutil.which(shell) is None:
            raise UsageError(
                f"the shell {shell} cannot be run", "set SHELL to a shell, such as SHELL=/bin/sh"
            )
        self._keys = sys.stdin.fileno() if _is_terminal() else None
        self._master, self._slave = os.openpty()
        try:
            self._copy_settings()
            self._leader = subprocess.Popen(
                ["/bin/sh", "-c", _LEADER, shell, command],
                stdin=subprocess.DEVNULL if self._keys is None else self._slave,
                stdout=self._slave,
                stderr=self._slave,
                start_new_session=True,
                preexec_fn=_take_terminal,
            )
            os.set_blocking(self._master, False)
            try:
                with self._raw_keys():
                    self._relay()
            finally:
                self._end()
        finally:
            os.close(self._slave)
            os.close(self._master)

    def _copy_settings(self, *_signal: object) -> None:
        """Give the pseudo-terminal the settings and the size of the terminal; handles SIGWINCH."""
        if self._keys is None:
            settings = termios.tcgetattr(self._slave)
            settings[1] &= ~termios.OPOST
            termios.tcsetattr(self._slave, termios.TCSANOW, settings)
            termios.tcsetwinsize(self._slave, (24, 80))
            return
        if not _signal:
            termios.tcsetattr(self._slave, termios.TCSANOW, termios.tcgetattr(self._keys))
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetwinsize(self._slave, termios.tcgetwinsize(self._keys))

    @contextlib.contextmanager
    def _raw_keys(self) -> Iterator[None]:
        """Pass every key to the command: Ctrl-C is for the pseudo-terminal."""
        if self._keys is None:
            yield
            return
        settings = termios.tcgetattr(self._keys)
        resized = signal.signal(signal.SIGWINCH, self._copy_settings)
        tty.setraw(self._keys, termios.TCSANOW)
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, resized)
            with contextlib.suppress(termios.error):  # the terminal may be closed
                termios.tcsetattr(self._keys, termios.TCSANOW, settings)

    def _relay(self) -> None:
        """Pass keys and output on until the leader stops."""
        while not self._has_stopped():
            sources = [self._master] if self._keys is None else [self._master, self._keys]
            targets = [self._master] if self._waiting else []
            ready, writable, _ = select.select(sources, targets, [], _POLL_S)
            if self._keys in ready:
                assert self._keys is not None
                keys = os.read(self._keys, _CHUNK_BYTES)
                if not keys:
                    raise KeyboardInterrupt  # the terminal is closed
                self._waiting += keys
            if self._waiting and (writable or self._keys in ready):
                with contextlib.suppress(BlockingIOError):
                    del self._waiting[: os.write(self._master, self._waiting)]
            if self._master in ready:
                self._show_output()
        while select.select([self._master], [], [], 0)[0] and self._show_output():
            pass
        self._show(self._decoder.decode(b"", final=True))
        self.unread = self._read_back() + bytes(self._waiting)

    def _show_output(self) -> bool:
        """Return whether there was any."""
        with contextlib.suppress(OSError):
            output = os.read(self._master, _CHUNK_BYTES)
            self._show(self._decoder.decode(output))
            return bool(output)
        return False

    def _has_stopped(self) -> bool:
        """Return whether the leader has stopped or ended: the command has ended."""
        pid, status = os.waitpid(self._leader.pid, os.WNOHANG | os.WUNTRACED)
        if pid and not os.WIFSTOPPED(status):
            self._leader.returncode = os.waitstatus_to_exitcode(status)
        return bool(pid)

    def _read_back(self) -> bytes:
        """Return the keys that were not read."""
        if self._keys is None:
            return b""
        keys = b""
        with contextlib.suppress(OSError, termios.error):
            tty.setraw(self._slave, termios.TCSANOW)
            while select.select([self._slave], [], [], _REST_S)[0]:
                if not (read := os.read(self._slave, _CHUNK_BYTES)):
                    break
                keys += read
        return keys

    def _end(self) -> None:
        """Let the leader end; a command that still runs gets SIGHUP from the system."""
        if self._leader.returncode is None:
            has_ended = self._is_leader_in_foreground()
            os.kill(self._leader.pid, signal.SIGCONT if has_ended else signal.SIGKILL)
            self._leader.wait()
        code = self._leader.returncode
        self.status = code if code >= 0 else 128 - code

    def _is_leader_in_foreground(self) -> bool:
        return os.tcgetpgrp(self._master) == self._leader.pid


def plain_text(output: str) -> str:
    """Return what an output leaves on a terminal, as lines without colors and movements.

    Of a line that is written again and again, as a progress bar, the last state stays. What a
    full-screen program draws is left out.
    """
    output = _SEQUENCES.sub("", _ALTERNATE_SCREEN.sub("", output))
    return "\n".join(map(_last_state, output.replace("\r\n", "\n").split("\n")))


def _last_state(line: str) -> str:
    line = line.rstrip("\r").rpartition("\r")[2]
    kept: list[str] = []
    for character in line:
        if character != "\b":
            kept.append(character)
        elif kept:
            kept.pop()
    return "".join(kept)


def _take_terminal() -> None:
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
