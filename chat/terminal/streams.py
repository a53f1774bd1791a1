"""The standard streams as a program gets them: closed, non-blocking, full, or not readable."""

import errno
import io
import os
import select
import sys
from collections.abc import Callable
from typing import TextIO

from swiftchat.chat.terminal.signals import hang_up
from swiftchat.chat.terminal.theme import Theme
from swiftchat.errors import FileSystemError

_CHUNK_BYTES = 1 << 16
_SILENT_S = 3.0


def open_streams() -> None:
    """Replace the standard streams by those that lose nothing; call it before anything is printed.

    A closed descriptor 0 or 2 becomes the null device: the next file that is opened would get its
    number. Characters that stdout cannot encode become question marks. What stdout does not take
    raises `FileSystemError`, once; what stderr does not take is dropped: an answer does not fail
    because a notice cannot be shown. So is what a closed terminal does not take, and the program
    ends by SIGHUP unless that is ignored.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123  (open until the process ends)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123  (open until the process ends)
    sys.stdout = _text_stream(sys.stdout, _Output(sys.stdout.fileno(), must_arrive=True), "replace")
    sys.stderr = _text_stream(
        sys.stderr, _Output(sys.stderr.fileno(), must_arrive=False), "backslashreplace"
    )


class ThemedStream(io.TextIOWrapper):
    """A text stream with the theme of the terminal that it writes to; None: it has no colors."""

    theme: Theme | None = None


def theme_stderr(theme: Theme | None) -> None:
    """Give stderr the theme of notices and errors, if it is a terminal."""
    if isinstance(sys.stderr, ThemedStream) and sys.stderr.isatty():
        sys.stderr.theme = theme


def painted(stream: TextIO, part: str, text: str) -> str:
    """Return a text in the style that the theme of a stream has for a part."""
    theme = stream.theme if isinstance(stream, ThemedStream) else None
    return theme.paint(part, text) if theme else text


def _text_stream(before: TextIO, output: "_Output", errors: str) -> ThemedStream:
    """Return a stream with the encoding of the one before, buffered also if Python's is not."""
    return ThemedStream(
        io.BufferedWriter(output),  # type: ignore[type-var]  # its `write` is not that of a file
        before.encoding,
        errors,
        line_buffering=not output.must_arrive or output.isatty(),
    )


class _Output(io.RawIOBase):
    """A descriptor that is written completely, also if it does not block."""

    def __init__(self, descriptor: int, must_arrive: bool) -> None:
        self.must_arrive = must_arrive
        self._descriptor = descriptor
        self._is_terminal = os.isatty(descriptor)
        self._has_failed = False
        self.mode = "wb"  # as a `FileIO` has, for libraries that ask

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return self._is_terminal

    def writable(self) -> bool:
        return True

    def write(self, data: "bytes | memoryview", /) -> int:  # type: ignore[override]
        """Write all of `data`; raises `BrokenPipeError`, and `FileSystemError` for other errors."""
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view) and not self._has_failed:
            try:
                done += os.write(self._descriptor, view[done:])
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError as error:
                # Python writes the rest of a buffer again at its end.
                self._has_failed = True
                if self._is_terminal and error.errno == errno.EIO:
                    hang_up()
                    break
                if not self.must_arrive:
                    break
                if error.errno == errno.EPIPE:
                    raise
                raise FileSystemError(
                    f"cannot write the output: {error.strerror}",
                    "the output is incomplete: free some space, or write it elsewhere",
                ) from error
        return len(view)


def read_stdin(limit_bytes: int, on_silence: Callable[[], None]) -> bytes:
    """Return what stdin has until its end, at most one byte more than the limit.

    `on_silence` is called once if nothing arrives for some seconds. Raises OSError if stdin cannot
    be read, as one that `nohup` has replaced.
    """
    raw = getattr(sys.stdin.buffer, "raw", None)
    if raw is None:  # not of a descriptor
        return sys.stdin.buffer.read(limit_bytes + 1)
    descriptor = raw.fileno()
    content = bytearray()
    timeout_s: float | None = _SILENT_S
    while len(content) <= limit_bytes:
        if not select.select([descriptor], [], [], timeout_s)[0]:
            on_silence()
            timeout_s = None
            continue
        try:
            chunk = os.read(descriptor, min(_CHUNK_BYTES, limit_bytes + 1 - len(content)))
        except BlockingIOError:  # another reader was faster
            continue
        if not chunk:
            break
        content += chunk
        timeout_s = None
    return bytes(content)


def is_in_foreground(descriptor: int) -> bool:
    """Return whether this process may change the terminal without being stopped."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # not the controlling terminal, or it has been closed
        return True
