"""Calls while they are written: names, and arguments as far as they are certain."""

import json
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass

from swiftchat.chat.history.tool_call import ToolCall, well_formed
from swiftchat.chat.tools.typed_arguments import takes_text, typed_arguments

_NAME = r'(?P<name>[^\s<>{}\[\]"\\]{1,128})'
# What stands before the arguments of a call: in JSON, in Mistral's, gpt-oss's and XML-like syntax.
_HEADS = [
    re.compile(pattern)
    for pattern in (
        r'(?:\{\s*){1,2}(?:"(?:id|type|tool_call_id)"\s*:\s*"[^"\\]{0,80}"\s*,\s*)*'
        rf'(?:"function"\s*:\s*\{{\s*)?"(?:name|tool_name)"\s*:\s*"{_NAME}"\s*,\s*'
        r'"(?:arguments|parameters|args)"\s*:\s*(?=\{)',
        rf"(?:\[TOOL_CALLS\])?\s*{_NAME}(?:\[CALL_ID\][^\[\]]{{0,80}})?\[ARGS\]\s*(?=\{{)",
        rf"{_NAME}[^{{]{{0,80}}<\|message\|>\s*(?=\{{)",
        rf"(?:<function=)?{_NAME}>\s*(?=\{{|<parameter=)",
    )
]
_MAX_HEAD_CHARACTERS = 600
_BETWEEN = re.compile(r"(?:[\s\[\]},;]|</function>)*")
_KEY = re.compile(r'\s*,?\s*("(?:[^"\\]|\\.)*")\s*:\s*(?=\S)', re.DOTALL)
_END = re.compile(r"\s*\}")
_VALUE_PART = re.compile(r'[^"{}\[\],]+|["{}\[\],]')
_STRING = re.compile(r'(?:[^"\\]+|\\.)+|"', re.DOTALL)
# Of a string of JSON, without an escape that more text may complete: the first half of a pair.
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_STRING_PART = re.compile(
    rf'(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{{4}}|'
    rf"{_HIGH}(?:{_LOW}|(?=[^\\]|\\[^u]|\\u(?![dD][c-fC-F])[0-9a-fA-F]{{4}})))+",
    re.DOTALL,
)
_PARAMETER = re.compile(r"<parameter=([^<>]*)>|</function>")
# A parameter that is not closed ends with the call, whose mark is read again.
_PARAMETER_END = re.compile("</parameter>|(?=</function>)")
_PARAMETER_MARKS = ["</parameter>", "\n</parameter>", "</function>", "\n</function>"]


class CallDelta(str):
    """A piece of a call, without text: `arguments` goes on with the JSON of its arguments.

    `name` is empty but for the first piece of a call. `number` counts the calls of an answer.
    """

    number: int
    id: str
    name: str
    arguments: str

    def __new__(cls, number: int, call_id: str, name: str, arguments: str) -> "CallDelta":
        made = super().__new__(cls)
        made.number, made.id, made.name, made.arguments = number, call_id, name, arguments
        return made


class CallText(str):
    """The text of a call that pieces were yielded of, and that is none after all."""

    __slots__ = ()


@dataclass
class _Written:
    """A call whose name is known, and how much of its arguments has been yielded."""

    name: str
    id: str
    has_begun: bool = False
    sent: str = ""


class CallStream:
    """Yields the calls in a growing text piece by piece, those of syntaxes that it knows.

    The arguments are what `json.dumps` makes of those of the parsed call. Texts come as they are
    written, other values when they are complete. What is wrong or unknown ends the pieces.
    `schemas` are those of the offered tools.
    """

    def __init__(
        self, schemas: Mapping[str, object], first_number: int, is_single: bool = False
    ) -> None:
        """With `is_single` the first call is all."""
        self._is_single = is_single
        self.written: list[_Written] = []
        self._schemas, self._first_number = schemas, first_number
        self._buffer = ""
        self._steps = self._calls()

    def push(self, text: str) -> Iterator[CallDelta]:
        """Add text; yield what is certain now."""
        self._buffer += text
        for arguments in self._steps:
            if arguments is None:
                return
            yield self._delta(len(self.written) - 1, arguments)

    def end(self, calls: list[ToolCall]) -> Iterator[CallDelta]:
        """Yield the rest of the calls, which have been parsed."""
        for number, call in enumerate(calls):
            whole = json.dumps(call.arguments, ensure_ascii=False)
            if number == len(self.written):
                self.written.append(_Written(call.name, call.id))
                yield self._delta(number, whole)
            elif whole.startswith(sent := self.written[number].sent) and whole != sent:
                yield self._delta(number, whole.removeprefix(sent))

    def _delta(self, number: int, arguments: str) -> CallDelta:
        written = self.written[number]
        name = "" if written.has_begun else written.name
        written.has_begun, written.sent = True, written.sent + arguments
        return CallDelta(self._first_number + number, written.id, name, arguments)

    def _calls(self) -> Iterator[str | None]:
        """Yield arguments; None where more text is needed, and for ever after the last."""
        while True:
            self._take(_BETWEEN)
            heads = (head.match(self._buffer) for head in _HEADS)
            found = next(filter(None, heads), None)
            if found is None:
                if len(self._buffer) > _MAX_HEAD_CHARACTERS:
                    break
                yield None
                continue
            name, self._buffer = found["name"], self._buffer[found.end() :]
            if name not in self._schemas:
                break
            self.written.append(_Written(name, ToolCall(name, {}).id))
            yield ""
            schema = self._schemas[name]
            is_json = self._buffer.startswith("{")
            is_done = yield from self._object(schema) if is_json else self._parameters(schema)
            if self._is_single or not is_done:
                break
        while True:
            self._buffer = ""
            yield None

    def _object(self, schema: object) -> Generator[str | None, None, bool]:
        """Yield the arguments in a JSON object; return whether it has ended."""
        self._buffer, start = self._buffer[1:], "{"
        keys: set[str] = set()
        while True:
            if self._take(_END):
                yield "{}" if not keys else "}"
                return True
            if not (found := self._take(_KEY)):
                yield None
                continue
            key = _parsed(found[1])
            if not isinstance(key, str) or key in keys:
                return False
            keys.add(key)
            prefix, start = f"{start}{_dumped(key)}: ", ", "
            if self._buffer.startswith('"') and takes_text(key, schema):
                self._buffer = self._buffer[1:]
                yield f'{prefix}"'
                if not (yield from self._string()):
                    return False
                continue
            raw = yield from self._value()
            try:
                value = json.loads(raw, strict=False)
            except (ValueError, RecursionError):
                return False
            yield prefix + _typed(key, value, schema)

    def _string(self) -> Generator[str | None, None, bool]:
        """Yield a string, of which the quotation mark is read; return whether it is valid."""
        while True:
            if (found := self._take(_STRING_PART)) and found[0]:
                part = _parsed(f'"{found[0]}"')
                if not isinstance(part, str):
                    return False
                yield _dumped(part)[1:-1]
            elif self._buffer.startswith('"'):
                self._buffer = self._buffer[1:]
                yield '"'
                return True
            else:
                yield None

    def _value(self) -> Generator[str | None, None, str]:
        """Return the text of a value that is complete."""
        depth = at = 0
        is_in_string = False
        while True:
            while found := (_STRING if is_in_string else _VALUE_PART).match(self._buffer, at):
                part = found[0]
                if depth == 0 and part in ("}", ",", "]") and not is_in_string:
                    raw, self._buffer = self._buffer[:at], self._buffer[at:]
                    return raw
                at = found.end()
                if part == '"':
                    is_in_string = not is_in_string
                elif not is_in_string:
                    depth += (part in ("{", "[")) - (part in ("}", "]"))
            yield None

    def _parameters(self, schema: object) -> Generator[str | None, None, bool]:
        """Yield the arguments in tags; return whether they have ended."""
        keys: set[str] = set()
        start = "{"
        while True:
            found = _PARAMETER.search(self._buffer)
            if not found:
                yield None
                continue
            key, self._buffer = found[1], self._buffer[found.end() :]
            if key is None:
                yield "}"
                return True
            if key in keys:
                return False
            keys.add(key)
            prefix, start = f"{start}{_dumped(key)}: ", ", "
            if takes_text(key, schema):
                yield f'{prefix}"'
                yield from self._parameter_text()
                yield '"'
                continue
            while not (end := _PARAMETER_END.search(self._buffer)):
                yield None
            text = self._until(end).removeprefix("\n").removesuffix("\n")
            yield prefix + _typed(key, text, schema)

    def _parameter_text(self) -> Iterator[str | None]:
        """Yield the text of a parameter without the line ends at its tags."""
        while not self._buffer:
            yield None
        self._buffer = self._buffer.removeprefix("\n")
        while not (end := _PARAMETER_END.search(self._buffer)):
            # The line end before the tag is none of the text.
            num_held = max(overlap(self._buffer, mark) for mark in _PARAMETER_MARKS)
            at = len(self._buffer) - num_held
            text, self._buffer = self._buffer[:at], self._buffer[at:]
            if text:
                yield _dumped(text)[1:-1]
            yield None
        yield _dumped(self._until(end).removesuffix("\n"))[1:-1]

    def _until(self, end: re.Match[str]) -> str:
        """Remove the text before the end of a parameter from the buffer, and return it."""
        text, self._buffer = self._buffer[: end.start()], self._buffer[end.end() :]
        return text

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Remove what a pattern matches from the buffer."""
        if found := pattern.match(self._buffer):
            self._buffer = self._buffer[found.end() :]
        return found


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of a text that is a beginning of a mark."""
    return max((n for n in range(1, len(mark)) if text.endswith(mark[:n])), default=0)


def _typed(key: str, value: object, schema: object) -> str:
    arguments = typed_arguments({key: well_formed(value)}, schema)
    return _dumped(arguments[key])


def _parsed(text: str) -> object:
    try:
        return well_formed(json.loads(text, strict=False))
    except ValueError:
        return None


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
