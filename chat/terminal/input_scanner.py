"""Splitting of terminal input into typed keys and pasted text.

A terminal with bracketed paste marks the beginning and the end of a paste. Pastes without marks
come from terminals that have none, and from the time before the program could ask for them. They
are recognized by their speed: an Enter with more text right behind it was not typed.

Keys of all protocols become those of a legacy terminal. Answers and reports of the terminal are
taken out; the answer to the question for its background color is kept.
"""

import re
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from swiftchat.chat.terminal.key_sequences import SEQUENCE, key_bytes

ASK_BACKGROUND = b"\x1b]11;?\x1b\\"
PASTE_START, PASTE_END = b"\x1b[200~", b"\x1b[201~"

# Input pauses at least this long between a paste without marks and the next key.
PASTE_PAUSE_S = 0.1
# A slow terminal may pause within a paste without marks. So long after it, only an Enter that
# arrives alone counts as typed.
_WARY_S = 1.0
_MAX_TYPED_BYTES = 1024  # more at once was not typed

_ENTER_BEFORE_TEXT = re.compile(rb"(?<!\x1b)[\r\n](?=[\t\r\n -~\x80-\xff])")
_PIECE = re.compile(rb"[^\r\n\x03\x04\x1a]*[\r\n\x03\x04\x1a]|[^\r\n\x03\x04\x1a]+")
# Answers of the terminal to questions: no program waits for them any more. Ctrl-C ends one.
_REPLIES = re.compile(
    rb"\x1b[\]P_^X][^\x07\x1b\x03]*(?:\x07|\x1b\\)|"
    + rb"\x1b(?:\]\d|P[\d$+>!|]|_G)[^\x07\x1b\x03]*(?=\x03)"
)
# The beginning of a sequence or of an answer, with the rest to come; no answer has an Enter.
_BEGUN_REPLY = rb"(?:\]\d|P[\d$+>!|]|_G)[^\x07\x1b\x03\x04\x1a\r\n]*\x1b?"
_BEGUN_SEQUENCE = rb"\[(?:\[|M[^\x00-\x1f]{0,2}|[0-?]{0,64}[ -/]{0,8})"
_BEGUN = re.compile(rb"\x1b(?:" + _BEGUN_SEQUENCE + rb"|" + _BEGUN_REPLY + rb"|[\]PO_])?\Z")
_NOT_TEXT = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_BACKGROUND = b"\x1b]11;"  # begins the answer to ASK_BACKGROUND
_MAX_PAUSES = 10  # within a sequence or an answer of the terminal
_SIGNAL_KEYS = re.compile(rb"([\x03\x1a])")


class InputEvent(NamedTuple):
    """Pasted text, or typed keys: at most one of Enter, Ctrl-C, Ctrl-D, Ctrl-Z, as the last.

    A tuple of built-in types, so that a deque compares events without releasing the GIL.
    """

    is_paste: bool
    data: bytes


class InputScanner:
    """Turns chunks of input into events.

    Call `feed` for each chunk, and `pause` when none has come for `PASTE_PAUSE_S` although
    `is_waiting`. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.background: bytes | None = None  # the terminal's background color, once it has told
        self._clock = clock
        self._num_pauses = 0  # in the held beginning
        self._held = b""  # the beginning of a sequence, an answer, or PASTE_START
        self._paste: bytearray | None = None  # between the marks
        self._unmarked: bytearray | None = None  # of a paste without marks
        self._wary_until = float("-inf")
        self._has_paused = True

    @property
    def is_waiting(self) -> bool:
        """Whether a pause in the input has a meaning."""
        return bool(self._held) or self._unmarked is not None or self._paste is not None

    @property
    def is_in_marks(self) -> bool:
        """Whether the end mark of a paste has not come yet."""
        return self._paste is not None

    @property
    def is_pasting(self) -> bool:
        """Whether a paste is incomplete, or a paste without marks may be."""
        return self._paste is not None or self._clock() < self._wary_until

    def expect_paste(self) -> None:
        """Treat the next chunk as the rest of a paste whose beginning another program has read."""
        if self._paste is None and self._unmarked is None:
            self._unmarked = bytearray()
            self._wary_until = self._clock() + _WARY_S

    def feed(self, data: bytes) -> list[InputEvent]:
        events: list[InputEvent] = []
        # A paste whose end mark is lost must not swallow Ctrl-C.
        if self._paste is not None and self._has_paused and data == b"\x03":
            events += self._end_paste()
        self._has_paused, self._num_pauses = False, 0
        data, self._held = self._held + data, b""
        while data:
            if self._paste is not None:
                data = self._feed_paste(data, events)
                continue
            plain, mark, data = data.partition(PASTE_START)
            if mark:
                events += self._plain(plain) + self._end_unmarked()
                self._paste = bytearray()
            else:
                begun = _BEGUN.search(plain)
                self._held = begun[0] if begun else b""
                events += self._plain(plain.removesuffix(self._held))
        return events

    def pause(self) -> list[InputEvent]:
        """Return the events that only a pause completes."""
        self._has_paused = True
        # A key may have sent as much; more has come apart on a slow line.
        is_cut = len(self._held) > 2 or self._held in (b"\x1b[", b"\x1b]")
        if is_cut and self._num_pauses < _MAX_PAUSES:
            self._num_pauses += 1
            return self._end_unmarked()
        held, self._held = b"" if is_cut else self._held, b""
        return [*self._plain(held), *self._end_unmarked()]

    def finish(self) -> list[InputEvent]:
        """Return what was read so far, also of an incomplete paste."""
        return [*self._end_paste(), *self.pause()]

    def _feed_paste(self, data: bytes, events: list[InputEvent]) -> bytes:
        """Append to the paste; return what follows it."""
        assert self._paste is not None
        searched = max(0, len(self._paste) - len(PASTE_END))
        self._paste += data
        end = self._paste.find(PASTE_END, searched)
        if end < 0:
            return b""
        rest = bytes(self._paste[end + len(PASTE_END) :])
        del self._paste[end:]
        events += self._end_paste()
        return rest

    def _end_paste(self) -> list[InputEvent]:
        text, self._paste = self._paste, None
        return [InputEvent(True, bytes(text))] if text else []

    def _end_unmarked(self) -> list[InputEvent]:
        text, self._unmarked = self._unmarked, None
        if not text:
            return []
        self._wary_until = self._clock() + _WARY_S
        return [InputEvent(True, bytes(text))]

    def _plain(self, data: bytes) -> list[InputEvent]:
        """Return the events of input without paste marks."""
        data = _REPLIES.sub(self._take_reply, data.replace(PASTE_END, b""))
        if not data:
            return []
        if self._unmarked is None and self._is_typed(data):
            return list(_typed(data))
        events: list[InputEvent] = []
        data = SEQUENCE.sub(lambda sequence: _pasted_key(key_bytes(sequence[0])), data)
        for part in _SIGNAL_KEYS.split(data):
            if _SIGNAL_KEYS.fullmatch(part):
                events += [*self._end_unmarked(), InputEvent(False, part)]
            elif part:
                self._unmarked = (self._unmarked or bytearray()) + _NOT_TEXT.sub(b"", part)
                self._wary_until = self._clock() + _WARY_S
        return events

    def _take_reply(self, reply: re.Match[bytes]) -> bytes:
        if reply[0].startswith(_BACKGROUND):
            self.background = reply[0].removeprefix(_BACKGROUND)
        return b""

    def _is_typed(self, data: bytes) -> bool:
        if len(data) > _MAX_TYPED_BYTES or _ENTER_BEFORE_TEXT.search(data):
            return False
        is_alone = len(data) == 1
        return is_alone or self._clock() >= self._wary_until or not re.search(rb"[\r\n]", data)


def _typed(data: bytes) -> Iterator[InputEvent]:
    """Yield each sequence as an event of its own: as the key that it means."""
    start = 0
    for sequence in SEQUENCE.finditer(data):
        for piece in _PIECE.findall(data[start : sequence.start()]):
            yield InputEvent(False, piece)
        if key := key_bytes(sequence[0]):
            yield InputEvent(False, key)
        start = sequence.end()
    for piece in _PIECE.findall(data[start:]):
        yield InputEvent(False, piece)


def _pasted_key(key: bytes) -> bytes:
    """Return what a key means in a pasted text: Ctrl-C, Ctrl-Z and characters."""
    return key if len(key) == 1 or not key.startswith(b"\x1b") else b""
