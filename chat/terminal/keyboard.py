"""The keyboard of an interactive chat: reads the terminal from the start to the end.

A thread reads all input as it comes, so that the terminal's input queue is never full (Ctrl-C
behind a large paste would wait in it) and no text is left for the shell. The terminal stays in raw
mode with bracketed paste on. Without a prompt, Ctrl-C and Ctrl-Z become signals, and everything
else waits for the next prompt.
"""

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self

from swiftchat.chat.terminal.input_scanner import (
    ASK_BACKGROUND,
    PASTE_PAUSE_S,
    InputEvent,
    InputScanner,
)
from swiftchat.chat.terminal.signals import hang_up

INTERRUPT, SUSPEND, END = (InputEvent(False, key) for key in (b"\x03", b"\x1a", b"\x04"))

_ERASE_LINE = b"\r\x1b[K"
_BRACKETED_PASTE_ON, _BRACKETED_PASTE_OFF = b"\x1b[?2004h", b"\x1b[?2004l"
_CHUNK_BYTES = 1 << 16
_ENTER_PAUSE_S = 0.02  # for the rest of a paste to arrive behind an Enter
# At the end: how long input without paste marks may take, the longest pause in it, and the longest
# pause in a marked paste, whose end mark comes at last even from a slow terminal.
_MAX_DISCARD_S, _MAX_PAUSE_S, _MAX_MARKED_PAUSE_S = 10.0, 0.6, 10.0
_MAX_ANSWER_S = 0.5  # from a question to the terminal's answer
_POLL_S = 0.005
_BEFORE_QUESTION_S = 0.1  # for the reader to deliver what was typed before
_EXIT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Attributes = list[Any]  # of termios


class Keyboard:
    """The terminal on stdin; a context manager. Before `with`, every method does nothing.

    `is_dumb`: write no escape sequences. Only the main thread may call methods, but `pending`.
    """

    def __init__(self, is_dumb: bool = False) -> None:
        self.is_closed = False  # the terminal has ended its input
        self._is_dumb = is_dumb
        self._is_open = False
        self._is_prompting = False
        self._is_line_mode = False
        self._num_lent = 0
        self._asked_s = float("-inf")  # the time of the question for the background color
        # Shared with the reader without a lock: a signal handler may interrupt the main thread at
        # any point, and would wait for the lock forever.
        self._events: deque[InputEvent] = deque()
        self._scanner = InputScanner()
        self._before_suspend: Callable[[], None] = _nothing

    def __enter__(self) -> Self:
        self._descriptor = sys.stdin.fileno()
        self._attributes = termios.tcgetattr(self._descriptor)
        # One byte per event, and per command to the reader: p(ause), c(ontinue), q(uit).
        self._event_pipe = os.pipe()
        self._command_pipe = os.pipe()
        self._paused_pipe = os.pipe()
        os.set_blocking(self._event_pipe[1], False)
        os.set_blocking(self._event_pipe[0], False)
        self._is_open = True
        self._old_handlers = {
            number: signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGCONT)
        }
        # A shell without job control ignores SIGTSTP and could not resume the program.
        if self._old_handlers[signal.SIGTSTP] is not signal.SIG_IGN:
            signal.signal(signal.SIGTSTP, self._suspend)
        signal.signal(signal.SIGCONT, self._restore_mode)
        self._enter_mode()
        self._expect_rest_of_paste()
        self._reader = threading.Thread(target=self._read, name="keyboard", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _EXIT_SIGNALS)
        try:
            self._close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _close(self) -> None:
        self.background(_MAX_ANSWER_S)  # a later answer would be typed into the shell
        os.write(self._command_pipe[1], b"q")
        self._reader.join()
        self._is_open = False
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        with contextlib.suppress(termios.error, OSError):  # the terminal may be closed
            self._discard_input()
            self._leave_mode()
        for pipe in (self._event_pipe, self._command_pipe, self._paused_pipe):
            os.close(pipe[0])
            os.close(pipe[1])

    @contextlib.contextmanager
    def prompting(self) -> Iterator[None]:
        """Deliver Ctrl-C and Ctrl-Z as events while a prompt reads them."""
        self._is_prompting = True
        try:
            yield
        finally:
            self._is_prompting = False
            self._raise_signals()

    @contextlib.contextmanager
    def line_mode(self) -> Iterator[None]:
        """As `prompting`; the terminal itself edits and echoes the line."""
        with self.prompting():
            self._is_line_mode = True
            self._restore_mode()
            try:
                yield
            finally:
                self._is_line_mode = False
                self._restore_mode()

    def ask(self, question: str) -> str | None:
        """Return the line that is typed after a question, None without a terminal or at Ctrl-D.

        What was typed or pasted before is no answer, and waits for the next prompt. Raises
        `KeyboardInterrupt` at Ctrl-C.
        """
        if not self._is_open:
            return None
        time.sleep(_BEFORE_QUESTION_S)
        earlier = list(iter(self.take, None))
        try:
            with self.line_mode():
                self._write(question.encode())
                line = b""
                while not line.endswith((b"\n", b"\r")):
                    self.wait()
                    event = self.take()
                    if event == END or (event is None and self.is_closed):
                        return None
                    if event is not None and event.is_paste:
                        earlier.append(event)
                        self._write(b"\n(a paste is no answer)\n" + question.encode())
                    elif event is not None:
                        line += event.data
                return line.decode("utf-8", "replace").strip()
        finally:
            self._events.extendleft(reversed(earlier))

    @property
    def is_open(self) -> bool:
        """Whether it reads a terminal."""
        return self._is_open

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Leave the terminal to another program, in the mode in which this program found it."""
        if not self._is_open:
            yield
            return
        self._lend()
        try:
            yield
        finally:
            self._take_back()

    def type_again(self, keys: bytes) -> None:
        """Keep keys that another program was given and has not read: as a part of the draft.

        Call it while the terminal is lent.
        """
        if self._is_open and keys:
            self._scanner.expect_paste()
            self._events.extend((*self._scanner.feed(keys), *self._scanner.finish()))
            if not self._is_dumb:
                self._write(_ERASE_LINE)  # it has been echoed; the prompt will show it

    @contextlib.contextmanager
    def erasing(self, before_suspend: Callable[[], None]) -> Iterator[None]:
        """Call a function, which should erase redrawn rows, before the program is suspended."""
        self._before_suspend = before_suspend
        try:
            yield
        finally:
            self._before_suspend = _nothing

    def ask_background(self) -> None:
        """Ask the terminal for its background color, which `background` returns."""
        if self._is_open and not self._is_dumb:
            self._asked_s = time.monotonic()
            self._write(ASK_BACKGROUND)

    def background(self, wait_s: float = 0.0) -> bytes | None:
        """Return the answer of the terminal, None if there is none `wait_s` after the question."""
        while self._scanner.background is None and time.monotonic() < self._asked_s + wait_s:
            time.sleep(_POLL_S)
        return self._scanner.background

    @property
    def pending(self) -> tuple[InputEvent, ...]:
        """The events that wait; any thread may look at them."""
        return tuple(self._events)

    def take(self) -> InputEvent | None:
        """Return the next event, None if there is none."""
        return self._events.popleft() if self._events else None

    def take_if(self, wanted: Callable[[InputEvent], bool]) -> InputEvent | None:
        """Return the next event if it is wanted."""
        return self._events.popleft() if self._events and wanted(self._events[0]) else None

    def wait(self) -> None:
        """Wait until an event may be there. Raises `KeyboardInterrupt` at Ctrl-C in line mode."""
        while not (self._events or self.is_closed):
            select.select([self.event_descriptor], [], [])
            self.clear_wakeup()

    @property
    def event_descriptor(self) -> int:
        """A descriptor that becomes readable when there is an event."""
        return self._event_pipe[0]

    def clear_wakeup(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._event_pipe[0], _CHUNK_BYTES)

    def wake(self) -> None:
        """Make the event descriptor readable if there are events or the input has ended."""
        if self._events or self.is_closed:
            with contextlib.suppress(BlockingIOError):  # full: it is readable
                os.write(self._event_pipe[1], b"e")

    # The terminal's mode

    def _enter_mode(self) -> None:
        if self._is_line_mode:
            termios.tcsetattr(self._descriptor, termios.TCSANOW, self._attributes)
            return
        raw = termios.tcgetattr(self._descriptor)
        raw[0] &= ~(termios.IXON | termios.IXOFF | termios.ICRNL | termios.INLCR | termios.IGNCR)
        raw[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)
        raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._descriptor, termios.TCSANOW, raw)
        if not self._is_dumb:
            self._write(_BRACKETED_PASTE_ON)

    def _leave_mode(self) -> None:
        if not self._is_dumb:
            self._write(_BRACKETED_PASTE_OFF)
        termios.tcsetattr(self._descriptor, termios.TCSANOW, self._attributes)

    def _write(self, sequence: bytes) -> None:
        # A signal handler may not write to sys.stdout, which may be writing already.
        os.write(sys.stdout.fileno(), sequence)

    def _restore_mode(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Enter the mode again, which the shell may have changed, unless the terminal is lent."""
        if self._is_open and not self._num_lent:
            with contextlib.suppress(termios.error, OSError):
                self._enter_mode()

    def _lend(self) -> None:
        self._num_lent += 1
        if self._num_lent == 1:
            if self._reader.is_alive():
                os.write(self._command_pipe[1], b"p")
                os.read(self._paused_pipe[0], 1)
            with contextlib.suppress(termios.error):
                self._leave_mode()

    def _take_back(self) -> None:
        self._num_lent -= 1
        if not self._num_lent:
            with contextlib.suppress(termios.error):
                self._enter_mode()
                self._expect_rest_of_paste()
            os.write(self._command_pipe[1], b"c")

    def _expect_rest_of_paste(self) -> None:
        """Treat input that waits already as pasted: its beginning went to another program.

        Call it in raw mode, in which incomplete lines can be read too.
        """
        if select.select([self._descriptor], [], [], 0)[0]:
            self._scanner.expect_paste()
            if not self._is_dumb:
                self._write(_ERASE_LINE)  # the terminal has echoed it; the prompt will show it

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Suspend the process group as the terminal would do at Ctrl-Z; returns after `fg`."""
        with contextlib.suppress(RuntimeError):  # the signal has interrupted a write to stdout
            self._before_suspend()
        with self.lent():
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(0, signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, self._suspend)

    def _discard_input(self) -> None:
        """Read what is left, and the rest of a paste, which would otherwise run in the shell.

        Unlike `tcflush`, this cannot take the beginning of a paste and leave the rest. Ctrl-C ends
        it.
        """
        deadline = time.monotonic() + _MAX_DISCARD_S
        while self._scanner.is_in_marks or time.monotonic() < deadline:
            pause_s = _MAX_PAUSE_S if self._scanner.is_pasting else 0.0
            pause_s = _MAX_MARKED_PAUSE_S if self._scanner.is_in_marks else pause_s
            if not select.select([self._descriptor], [], [], pause_s)[0]:
                return
            data = os.read(self._descriptor, _CHUNK_BYTES)
            if data in (b"", INTERRUPT.data):
                return
            self._scanner.feed(data)

    # The reader thread

    def _read(self) -> None:
        try:
            is_paused = False
            while True:
                timeout_s = PASTE_PAUSE_S if self._scanner.is_waiting and not is_paused else None
                sources = [self._command_pipe[0]] + ([] if is_paused else [self._descriptor])
                ready = select.select(sources, [], [], timeout_s)[0]
                if self._command_pipe[0] in ready:
                    command = os.read(self._command_pipe[0], 1)
                    if command == b"q":
                        return
                    is_paused = command == b"p"
                    if is_paused:
                        self._deliver(self._scanner.finish())
                        os.write(self._paused_pipe[1], b"p")
                elif ready:
                    self._deliver(self._scanner.feed(self._read_chunk()))
                else:
                    self._deliver(self._scanner.pause())
        except (OSError, EOFError, termios.error):
            self.is_closed = True
            hang_up()
            self.wake()
        finally:
            os.write(self._paused_pipe[1], b"e")  # no caller has to wait for this thread any more

    def _read_chunk(self) -> bytes:
        """Read what is there, and what follows an Enter immediately."""
        chunk = os.read(self._descriptor, _CHUNK_BYTES)
        if not chunk:
            if not self._is_line_mode:
                raise EOFError
            termios.tcgetattr(self._descriptor)  # raises if the terminal is closed
            return END.data
        while (
            chunk.endswith((b"\r", b"\n"))
            and len(chunk) < _CHUNK_BYTES
            and select.select([self._descriptor], [], [], _ENTER_PAUSE_S)[0]
            and (more := os.read(self._descriptor, _CHUNK_BYTES))
        ):
            chunk += more
        return chunk

    def _deliver(self, events: list[InputEvent]) -> None:
        self._events.extend(events)
        if self._is_prompting:
            self.wake()
        else:
            self._raise_signals()

    def _raise_signals(self) -> None:
        """Turn Ctrl-C and Ctrl-Z into signals to the main thread."""
        for event, number in ((INTERRUPT, signal.SIGINT), (SUSPEND, signal.SIGTSTP)):
            with contextlib.suppress(ValueError):
                while True:
                    self._events.remove(event)
                    signal.pthread_kill(_main_thread_id(), number)


def _main_thread_id() -> int:
    thread_id = threading.main_thread().ident
    assert thread_id is not None
    return thread_id


def _nothing() -> None:
    pass
