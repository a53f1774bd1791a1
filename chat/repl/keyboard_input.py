"""The keyboard as an input of prompt_toolkit, and the output that belongs to it."""

import asyncio
import codecs
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from prompt_toolkit.application import get_app_or_none
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.input.base import Input
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output

from swiftchat.chat.terminal.input_scanner import InputEvent
from swiftchat.chat.terminal.key_sequences import CURSOR_REPORT, SEQUENCE
from swiftchat.chat.terminal.keyboard import Keyboard


class KeyboardInput(Input):
    """Hands the events of a keyboard to prompt_toolkit, one per read.

    prompt_toolkit keeps keys that it has read but not used for the next prompt; one event contains
    nothing behind the Enter that ends a prompt.
    """

    def __init__(self, keyboard: Keyboard) -> None:
        self._keyboard = keyboard
        self._keys: list[KeyPress] = []
        self._parser = Vt100Parser(self._keys.append)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._callback: Callable[[], None] | None = None

    def read_keys(self) -> list[KeyPress]:
        self._keyboard.clear_wakeup()
        app = get_app_or_none()
        if app is not None and app.is_done:  # prompt_toolkit waits for cursor reports only
            event = self._keyboard.take_if(lambda event: bool(CURSOR_REPORT.match(event.data)))
        else:
            event = self._keyboard.take()
            self._keyboard.wake()  # to read the next event
        return [] if event is None else self._parsed(event)

    def flush_keys(self) -> list[KeyPress]:
        self._parser.flush()
        return self._take_keys()

    def _parsed(self, event: InputEvent) -> list[KeyPress]:
        if event.is_paste:
            text = event.data.decode("utf-8", "replace")
            return [*self.flush_keys(), KeyPress(Keys.BracketedPaste, text)]
        if SEQUENCE.fullmatch(event.data):
            self._parser.feed(_known(event.data.decode("ascii", "replace")))
            return self._take_keys()
        self._parser.feed(self._decoder.decode(event.data))
        # The scanner has waited for what could follow an Escape.
        return self.flush_keys() if event.data == b"\x1b" else self._take_keys()

    def _take_keys(self) -> list[KeyPress]:
        keys = self._keys[:]
        self._keys.clear()
        return keys

    @property
    def closed(self) -> bool:
        return self._keyboard.is_closed

    def fileno(self) -> int:
        return self._keyboard.event_descriptor

    def typeahead_hash(self) -> str:
        return "keyboard"

    def raw_mode(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()  # the keyboard is always in raw mode

    def cooked_mode(self) -> AbstractContextManager[None]:
        """Leave the terminal to an editor or the shell."""
        return self._keyboard.lent()

    @contextlib.contextmanager
    def attach(self, input_ready_callback: Callable[[], None]) -> Iterator[None]:
        with self._reading(input_ready_callback):
            yield

    @contextlib.contextmanager
    def detach(self) -> Iterator[None]:
        with self._reading(None):
            yield

    @contextlib.contextmanager
    def _reading(self, callback: Callable[[], None] | None) -> Iterator[None]:
        """Call a function when there are events; with None, leave them for later."""
        before, self._callback = self._callback, callback
        self._watch()
        try:
            yield
        finally:
            self._callback = before
            self._watch()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.fileno())
        if self._callback is not None:
            loop.add_reader(self.fileno(), self._callback)
            self._keyboard.wake()


def _known(sequence: str) -> str:
    """Return a sequence that prompt_toolkit knows: else the key without modifiers, else none.

    It would insert the characters of an unknown sequence.
    """
    if sequence in ANSI_SEQUENCES or CURSOR_REPORT.fullmatch(sequence.encode()):
        return sequence
    number, _, rest = sequence.partition(";")
    final = rest[-1:]
    plain = (
        number + final if final == "~" else f"\x1bO{final}" if final in "PQS" else f"\x1b[{final}"
    )
    return plain if final and plain in ANSI_SEQUENCES else ""


class _Output(Vt100_Output):
    """Leaves bracketed paste on: the keyboard switches it off at the end."""

    def disable_bracketed_paste(self) -> None:
        pass


def open_output() -> Output:
    """Return prompt_toolkit's output for the terminal on stdout."""
    found = create_output()
    if not isinstance(found, Vt100_Output):
        return found
    return _Output.from_pty(
        sys.stdout,
        term=os.environ.get("TERM"),
        default_color_depth=found.default_color_depth,
        enable_bell=found.enable_bell,
    )
