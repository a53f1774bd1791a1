"""Splitting calls of tools from a streamed answer."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.tools.call_stream import CallDelta, CallStream, CallText, overlap
from swiftchat.chat.tools.formats import ToolFormat
from swiftchat.chat.tools.offer import NO_TOOLS
from swiftchat.chat.tools.parsers import parse_function, parse_offered
from swiftchat.chat.tools.typed_arguments import typed_arguments

# What stands before a call that a model writes without the marks of its template: a code fence, or
# the marks of another; and the end of a text that may become that.
_LOOSE = (
    r"(?:(?P<fence>```)\w{0,20}|<(?P<tag>\|?\w{1,30}\|?)>|\[TOOL_CALLS\])\s{0,32}(?=[\[{])"
    r"|(?P<function><function=)(?=(?:NAMES)>\s{0,32}(?:<parameter=|</function>|\{))"
)
_UNFINISHED = re.compile(
    r"(?:`{1,2}|```\w{0,20}\s{0,32}|<\|?\w{0,30}\|?(?:>\s{0,32})?|"
    r"<function=[^<>\s]{0,128}(?:>\s{0,32}(?:<[a-z/]{0,10})?)?|"
    r"\[(?:T[A-Z_]{0,9}(?:\]\s{0,32})?)?)$"
)
# The beginning of a call without marks: as far as it is undecided, and with a first key of a call.
_UNDECIDED = re.compile(r'\s*(?:\[\s*)?(?:\{\s*(?:\{\s*)?(?:"[^"\\]{0,20}(?:"\s*)?)?)?')
_FIRST_KEY = re.compile(
    r'\s*(?:\[\s*)?(?:\{\s*){1,2}"'
    r'(?:name|tool_name|arguments|parameters|args|function|type|id|tool_call_id)"\s*:'
)
_FIRST_NAME = re.compile(r'\s*(?:\[\s*)?(?:\{\s*){1,2}"(?:name|tool_name)"\s*:\s*"([^"\\]*)"')
# Where the text of a call turns out to be JSON, after a name perhaps.
_JSON = re.compile(r'\s*(?:<function=)?[^<"\[{]*(?:\[ARGS\]\s*)?[\[{]\s*["\[{\]}]')
_STRING = re.compile(r'(?:[^"\\]+|\\.)*', re.DOTALL)


@dataclass
class _OpenCall:
    """A call whose text is held back: the mark before it, the one that ends it, and its parser.

    It is `loose` without the marks of the format. In the strings of JSON the closing mark is none,
    unless `ends_in_strings`. `stream` yields what is certain before the end.
    """

    mark: str
    close: str
    parse: Callable[[str], list[ToolCall]]
    is_loose: bool = False
    ends_in_strings: bool = False
    stream: CallStream | None = None
    _num_streamed: int = 0
    _is_json: bool = False
    _is_in_string: bool = False
    _num_scanned: int = 0  # characters without the beginning of a closing mark

    def find_end(self, text: str) -> int:
        """Return the position of the closing mark in the growing text, -1 without one."""
        if not self.close:
            return -1
        if not self._is_json:
            end = text.find(self.close, self._num_scanned)
            head = _JSON.match(text, 0, end if end >= 0 else len(text))
            if self.ends_in_strings or not head:
                self._num_scanned = max(0, len(text) - len(self.close) + 1)
                return end
            self._is_json, self._num_scanned = True, 0
        return self._find_outside_strings(text)

    def write(self, text: str, *, is_whole: bool = False) -> Iterator[CallDelta]:
        """Yield what is certain of the call, whose text so far is given."""
        if self.stream is not None:
            end = len(text) - (0 if is_whole else overlap(text, self.close))
            start, self._num_streamed = self._num_streamed, max(self._num_streamed, end)
            yield from self.stream.push(text[start:end])

    def _find_outside_strings(self, text: str) -> int:
        while True:
            at = self._num_scanned
            if self._is_in_string:
                match = _STRING.match(text, at)
                self._num_scanned = end = match.end() if match else at
                if text[end : end + 1] != '"':
                    return -1
                self._num_scanned, self._is_in_string = end + 1, False
                continue
            quote = text.find('"', at)
            end = text.find(self.close, at, quote + len(self.close) if quote >= 0 else len(text))
            if end >= 0 and (quote < 0 or end <= quote):
                return end
            if quote < 0:
                self._num_scanned = max(at, len(text) - len(self.close) + 1)
                return -1
            self._num_scanned, self._is_in_string = quote + 1, True


class ToolCallSplitter:
    """Splits streamed text of an answer into text and pieces of calls of tools.

    A marker may be spread over several pieces. The text of a call is held back until its end; text
    that is not a call after all is yielded then. Pieces of a call are `CallDelta`, which are empty
    texts; if text of the call follows them, because it is none, that is `CallText`. `calls` are the
    calls so far, with arguments of the types that the offered tools ask for. Without a format all
    is text.

    Models leave out the markers, or take others: an answer, a fenced block or a text behind a tag
    that is nothing but the JSON of a call, with the name of an offered tool and arguments, is one
    too, and so is `<function=NAME>`.
    """

    def __init__(self, tool_format: ToolFormat | None) -> None:
        self.calls: list[ToolCall] = []
        self._format = tool_format
        self._buffer = tool_format.prompted if tool_format else ""
        self._num_prompted = len(self._buffer)  # characters that are not of the answer
        self._open: _OpenCall | None = None
        self._at_start = True
        self._ends_in_strings = False  # the JSON of a call was damaged
        self._num_begun = 0  # calls of which a piece has been yielded
        self._held: list[str] = []  # the texts of the calls
        self._blank = ""  # behind calls: it is left out before another one, and at the end
        self._offer = tool_format.offer if tool_format else NO_TOOLS
        self._schemas = self._offer.schemas
        marks = (tool_format.plain, *tool_format.opens) if tool_format else ()
        own = "|".join(map(re.escape, filter(None, marks))) or r"(?!)"
        names = "|".join(map(re.escape, self._schemas))
        loose = _LOOSE.replace("NAMES", names) if names else r"(?!)(?P<function>)"
        self._marks = re.compile(f"(?P<own>{own})|{loose}")

    @property
    def is_in_call(self) -> bool:
        """Whether the text of a call is held back."""
        return self._open is not None

    @property
    def is_done(self) -> bool:
        """Whether nothing may follow the call that has been found."""
        return self._offer.is_single and bool(self.calls)

    def push(self, text: str) -> Iterator[str]:
        """Yield the pieces that are certain."""
        self._buffer += text
        yield from self._read()

    def flush(self, is_complete: bool) -> Iterator[str]:
        """Yield the held text at the end of the stream.

        Calls of an answer that is not complete are text, so that nothing is called by accident.
        """
        while self._open is not None:
            yield from self._end_unclosed(self._open)
            yield from self._read()
        yield from self._text(len(self._buffer))
        if not is_complete and self.calls:
            self.calls = []
            yield CallText("".join(self._held))

    def _read(self) -> Iterator[str]:
        while self._buffer:
            if self.is_done:
                self._take(len(self._buffer))
            elif self._format is None:
                yield self._take(len(self._buffer))
            elif (call := self._open) is not None:
                if call.is_loose and not self._may_be_call(self._buffer):
                    yield from self._reject(call)
                    continue
                end = call.find_end(self._buffer)
                if end < 0:
                    yield from call.write(self._buffer)
                    return
                inside = self._take(end)
                self._take(len(call.close))
                yield from self._end_call(call, inside, call.close)
            else:
                if self._is_start_unknown(self._format):
                    return
                if self._open is None:
                    yield from self._read_text(self._format)
                if self._open is None:
                    return

    def _is_start_unknown(self, tool_format: ToolFormat) -> bool:
        """Open a call without marks that begins the answer; return whether more text is needed."""
        begin = self._buffer.lstrip()
        if not (self._at_start and self._schemas):
            return False
        if any(mark.startswith(begin) for mark in tool_format.opens):
            return True
        if begin[0] in "[{" and not begin.startswith(tool_format.opens):
            self._open, self._at_start = self._loose("", ""), False
            self._open.stream = self._stream() if self._offer.is_required else None
        return False

    def _loose(self, mark: str, close: str) -> _OpenCall:
        return _OpenCall(mark, close, partial(parse_offered, names=self._schemas), is_loose=True)

    def _may_be_call(self, text: str) -> bool:
        """Return whether a text may be, or become, a call without marks."""
        if _UNDECIDED.fullmatch(text):
            return True
        named = _FIRST_NAME.match(text)
        return bool(_FIRST_KEY.match(text)) and (not named or named[1] in self._schemas)

    def _read_text(self, tool_format: ToolFormat) -> Iterator[str]:
        """Yield the text before a marker; hold back its possible beginning."""
        while (match := self._marks.search(self._buffer)) and not self._may_be_plain(match):
            yield from self._text(match.start())
            mark, self._at_start = self._take(len(match[0])), False
            if match[0] == tool_format.plain:
                continue
            if match["own"] is None and not match["function"]:
                tag = match["tag"]
                self._open = self._loose(mark, f"</{tag}>" if tag else match["fence"] or "")
                return
            is_own = match["own"] is not None
            self._open = _OpenCall(
                mark,
                tool_format.close if is_own else "</function>",
                tool_format.parse if is_own else parse_function,
                ends_in_strings=self._ends_in_strings,
                stream=self._stream(),
            )
            return
        unfinished = _UNFINISHED.search(self._buffer) if self._schemas else None
        end = len(self._buffer) - max(overlap(self._buffer, mark) for mark in tool_format.opens)
        end = min(end, unfinished.start()) if unfinished else end
        yield from self._text(match.start() if match else end)

    def _may_be_plain(self, match: re.Match[str]) -> bool:
        """Return whether what may be a call is perhaps the beginning of the mark of text."""
        assert self._format is not None
        rest = self._buffer[match.start() :]
        return rest != self._format.plain and self._format.plain.startswith(rest)

    def _text(self, num_characters: int) -> Iterator[str]:
        text = self._take(num_characters)
        self._at_start = self._at_start and not text.strip()
        if self.calls and not text.strip():
            self._blank += text
        elif text:
            yield self._blank + text
            self._blank = ""

    def _end_unclosed(self, call: _OpenCall) -> Iterator[str]:
        """End a call without its closing mark; what is none is read again, as text."""
        if self._parsed(call, self._buffer):
            yield from self._end_call(call, self._take(len(self._buffer)), "")
        elif call.is_loose:
            yield from self._reject(call)
        elif call.close and (end := self._buffer.find(call.close)) >= 0:
            self._ends_in_strings = True
            yield from self._end_call(call, self._take(end), "")
        else:
            yield from self._end_call(call, self._take(len(self._buffer)), "")

    def _end_call(self, call: _OpenCall, inside: str, close: str) -> Iterator[str]:
        """Parse a held text; yield it with its markers if it is not a call."""
        raw, self._open = f"{call.mark}{inside}{close}", None
        stream = call.stream or self._stream()
        yield from call.write(inside, is_whole=True)
        parsed = self._parsed(call, inside)
        if not parsed:
            self._num_begun += len(stream.written)
            yield CallText(raw) if stream.written else raw
            return
        self._blank = ""
        self._held.append(raw)
        direct = self._format.direct if self._format else ""
        kept = self._kept(parsed, stream)
        yield from stream.end([call for call in kept if call.name != direct])
        self._num_begun += len(stream.written)

    def _stream(self) -> CallStream:
        return CallStream(self._schemas, self._num_begun, self._offer.is_single)

    def _parsed(self, call: _OpenCall, inside: str) -> list[ToolCall]:
        is_possible = not call.is_loose or self._may_be_call(inside)
        return call.parse(inside) if is_possible else []

    def _kept(self, parsed: list[ToolCall], stream: CallStream) -> list[ToolCall]:
        """Add calls to `calls`, with typed arguments and an id of their own, and return them."""
        found = []
        for number, call in enumerate(parsed[:1] if self._offer.is_single else parsed):
            written = stream.written[number : number + 1]
            is_known = any(call.id == other.id for other in self.calls)
            new_id = ToolCall(call.name, {}).id if is_known else call.id
            call_id = written[0].id if written else new_id
            arguments = typed_arguments(call.arguments, self._schemas.get(call.name))
            found.append(replace(call, id=call_id, arguments=arguments))
            self.calls.append(found[-1])
        return found

    def _reject(self, call: _OpenCall) -> Iterator[str]:
        """Yield the opening mark of what is no call as text; what follows it is read again."""
        self._open = None
        self._num_begun += len(call.stream.written) if call.stream else 0
        if call.mark:
            yield call.mark

    def _take(self, num_characters: int) -> str:
        taken, self._buffer = self._buffer[:num_characters], self._buffer[num_characters:]
        num_prompted = min(self._num_prompted, num_characters)
        self._num_prompted -= num_prompted
        return taken[num_prompted:]
