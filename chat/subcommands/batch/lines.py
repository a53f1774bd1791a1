"""The lines of a batch's input: prompts or messages, with options of their own."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Never

from swiftchat.chat.options.chat_options import SAMPLING_OPTIONS, option_name
from swiftchat.chat.options.option_files import read_options
from swiftchat.chat.options.parameter import shown
from swiftchat.errors import UsageError

_OPTIONS = (*SAMPLING_OPTIONS, "logprobs", "samples")
# Fields of a line that only the HTTP API reads.
_API_FIELDS = (
    *("response_format", "tools", "tool_choice", "parallel_tool_calls", "lora"),
    *("reasoning_effort", "chat_template_kwargs"),
)
_ROLES = ("system", "developer", "user", "assistant")
_KEY_DIGITS = 16


@dataclass(frozen=True)
class Line:
    """A line of the input and its number, from 1 on."""

    number: int
    text: str

    @property
    def key(self) -> str:
        """Hexadecimal digits that another text does not have."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:_KEY_DIGITS]

    @property
    def id(self) -> Any:
        """The field `id`, None for a line without one."""
        return self._field("id")

    @property
    def is_openai(self) -> bool:
        """Whether it is a line in OpenAI's format."""
        return self._field("body") is not None

    @property
    def custom_id(self) -> Any:
        """The field of OpenAI's lines that names one, None for a line without it."""
        return self._field("custom_id")

    @property
    def url(self) -> Any:
        """The field of OpenAI's lines with the path of the API."""
        return self._field("url")

    def _field(self, name: str) -> Any:
        try:
            value = json.loads(self.text, parse_constant=_refuse, parse_float=_finite)
            found = value.get(name) if isinstance(value, dict) else None
            json.dumps(found)  # an error for one that is nested too deeply for the output
        except (ValueError, RecursionError):
            return None
        return found


@dataclass(frozen=True)
class Request:
    """Messages to answer, and the sampling options that differ from those of the command.

    With fields for the HTTP API in `api`, that reads the messages too, None without any.
    """

    messages: list[dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    api: dict[str, Any] | None = None


def split_lines(text: str) -> list[Line]:
    """Return the lines of a file that are not blank."""
    return [Line(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]


def parse_line(line: Line, system: str | None) -> Request | Mapping[str, Any]:
    """Return the body of a line in OpenAI's format, or the request of another one.

    Raises `UsageError`.
    """
    value = _parse_json(line.text)
    if not isinstance(value, dict) or "body" not in value:
        return parse_request(line, system)
    if value.get("method", "POST") != "POST":
        raise UsageError("method is not POST", _OPENAI_HINT)
    if not isinstance(value["body"], dict):
        raise UsageError("body is not the object of a request", _OPENAI_HINT)
    return value["body"]


def parse_request(line: Line, system: str | None) -> Request:
    """Return the request of a line, with a system prompt unless the line has one.

    A line is a JSON string, the prompt, or an object with `prompt` or `messages`, and optionally
    `id`, `system`, sampling options and fields of the HTTP API. Raises `UsageError`.
    """
    value = _parse_json(line.text)
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise UsageError("the line is neither a JSON string nor an object", _HINT)
    known = {"id", "prompt", "messages", "system", *_API_FIELDS}
    settings = {name: one for name, one in value.items() if name not in known}
    if ("prompt" in value) == ("messages" in value):
        count = "both" if "prompt" in value else "neither"
        raise UsageError(f"the line has {count} of prompt and messages", _HINT)
    api = {name: value[name] for name in _API_FIELDS if name in value}
    is_api = bool(api) or _has_calls(value.get("messages"))
    messages = list(value["messages"]) if _has_calls(value.get("messages")) else _messages(value)
    system = value.get("system", system)
    if system is not None and not isinstance(system, str):
        raise UsageError("system is not a string", _HINT)
    if system and messages[0].get("role") != "system":
        messages.insert(0, {"role": "system", "content": system})
    return Request(messages, _options(settings), api if is_api else None)


def _has_calls(messages: object) -> bool:
    """Return whether messages have calls of tools or results, which the HTTP API reads."""
    found = messages if isinstance(messages, list) else []
    is_whole = all(isinstance(one, dict) for one in found)
    return is_whole and any("tool_calls" in one or one.get("role") == "tool" for one in found)


_HINT = 'write it as {"prompt": "Why is the sky blue?", "temperature": 0}'
_OPENAI_HINT = 'a line of OpenAI has "custom_id", "method": "POST", "url" and "body"'


def _parse_json(text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()  # an error for half of a surrogate pair
        return value
    except RecursionError as error:
        raise UsageError("the line is not JSON: it is nested too deeply", _HINT) from error
    except (json.JSONDecodeError, UnicodeEncodeError, _NoNumber) as error:
        raise UsageError(f"the line is not JSON: {error}", _HINT) from error
    except ValueError as error:  # of `int`
        raise UsageError("the line has a number with thousands of digits", _HINT) from error


class _NoNumber(ValueError):
    """A number that JSON does not have, or that no float has."""


def _refuse(text: str) -> Never:
    raise _NoNumber(f"{text} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(shown(text))


def _messages(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = value.get("messages", [{"role": "user", "content": value.get("prompt")}])
    if not isinstance(found, list) or not found:
        raise UsageError("messages is not a list of messages", _HINT)
    for message in found:
        is_object = isinstance(message, dict) and message.keys() == {"role", "content"}
        if not is_object or not isinstance(message["content"], str):
            name = "prompt is not a string" if "prompt" in value else "a message is invalid"
            raise UsageError(name, 'a message is {"role": "user", "content": "…"}')
        if message["role"] not in _ROLES:
            raise UsageError(f"no role {message['role']!r}", f"roles: {', '.join(_ROLES)}")
    if not any(message["content"].strip() for message in found):
        raise UsageError("the prompt is empty", _HINT)
    # Templates know the role developer as system.
    return [m | {"role": "system"} if m["role"] == "developer" else dict(m) for m in found]


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    for name in settings:
        if option_name(name) not in _OPTIONS:
            raise UsageError(f"no option {shown(name)}", f"a line may have: {', '.join(_OPTIONS)}")
    return read_options(settings, _OPTIONS, "the line")
