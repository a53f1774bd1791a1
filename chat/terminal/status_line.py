"""The status line: what the program waits for, as long as it waits."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from swiftchat.chat.terminal.amounts import format_duration, short_count
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.engine.api.protocol import Prefill, Progress, Searching, Wait

_FRAMES = "|/-\\"
_FIRST_S, _INTERVAL_S = 0.3, 0.15  # a short wait shows nothing
_FIRST_ESTIMATE_S = 1.0  # before, the speed is not known
_FIRST_LINE_S, _LINE_INTERVAL_S = 2.0, 5.0


class ProgressText:
    """How far an operation is, as text, with an estimate of the time that it still takes.

    The estimate is that of the speed since the first call for the label.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._label = ""
        self._began_s = 0.0
        self._first = 0

    def of(self, label: str, done: int, total: int) -> str:
        """Return `label · 7 % · 40 s left`; only the label if nothing is done or to be done."""
        now = self._clock()
        if label != self._label or done < self._first:
            self._label, self._began_s, self._first = label, now, done
        if not 0 < done <= total:
            return label
        text = f"{label} · {100 * done // total} %"
        passed_s, num_done = now - self._began_s, done - self._first
        if passed_s < _FIRST_ESTIMATE_S or num_done <= 0 or done == total:
            return text
        return f"{text} · {format_duration(passed_s * (total - done) / num_done)} left"


class StatusLine:
    """One line on stderr that a thread redraws while the main thread waits.

    It shows nothing if stderr is not a terminal. Unless `may_erase`, for screen readers, it prints
    a line every few seconds instead. `note` returns what stands behind the text, as far as there is
    room; the thread calls it.
    """

    def __init__(
        self,
        may_erase: bool,
        is_quiet: bool = False,
        note: Callable[[int], str] = lambda columns: "",
    ) -> None:
        self._is_enabled = sys.stderr.isatty() and not is_quiet
        self._may_erase = may_erase
        self._note = note
        self._text = ""
        self._progress = ProgressText()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, label: str, done: int = 0, total: int = 0) -> None:
        """Show a label, and how far it is if there is a total, until `clear`."""
        self._text = sanitize(self._progress.of(label, done, total))
        if self._is_enabled and self._thread is None:
            self._stop = threading.Event()
            draw = self._redraw if self._may_erase else self._print_lines
            self._thread = threading.Thread(
                target=draw, args=(self._stop,), name="status", daemon=True
            )
            self._thread.start()

    def show_progress(self, progress: Progress) -> None:
        """Show how far the engine is loaded, until `clear`."""
        self.show(progress.label, progress.done, progress.total)

    def show_wait(self, wait: Wait) -> None:
        """Show what a generation without text reports, until `clear`."""
        match wait:
            case Prefill(done, total):
                self.show(f"reading {short_count(total)} tokens", done, total)
            case Searching(num_tokens):
                self.show(f"searching the best answer, {num_tokens} tokens")

    def clear(self) -> None:
        """Erase the line. Call it before other output."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            if thread.is_alive():
                thread.join()

    @contextlib.contextmanager
    def waiting(self, label: str) -> Iterator[None]:
        """Show a label during a block that prints nothing."""
        self.show(label)
        try:
            yield
        finally:
            self.clear()

    def _redraw(self, stop: threading.Event) -> None:
        if stop.wait(_FIRST_S):
            return
        number = 0
        while True:
            # No automatic wrap: a character of the note may be wider than the terminal's.
            frame = _FRAMES[number % len(_FRAMES)]
            _write(f"\r\x1b[K\x1b[?7l{frame} {self._row(_columns() - 3)}\x1b[?7h")
            number += 1
            if stop.wait(_INTERVAL_S):
                _write("\r\x1b[K")
                return

    def _row(self, columns: int) -> str:
        """Return the text and the note; the text is cut if there is no room for both."""
        note = self._note(columns)
        if not note:
            return self._text[:columns]
        text = self._text[: max(0, columns - len(note) - 3)]
        return f"{text} · {note}" if text else note

    def _print_lines(self, stop: threading.Event) -> None:
        started = time.monotonic()
        wait_s = _FIRST_LINE_S
        while not stop.wait(wait_s):
            _write(f"{self._text}, {time.monotonic() - started:.0f} s\n")
            wait_s = _LINE_INTERVAL_S


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        return 80


def _write(text: str) -> None:
    # Unbuffered: a signal handler may stop this thread while the main thread uses sys.stderr.
    with contextlib.suppress(OSError):  # the terminal may be closed
        os.write(sys.stderr.fileno(), text.encode(sys.stderr.encoding, "replace"))
