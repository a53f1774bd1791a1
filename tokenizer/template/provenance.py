"""Track which parts of a rendered template come from the caller, not from the template."""

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from swiftchat.tokenizer.template.template import ChatTemplate

__all__ = ["render"]

# Templates compare the values of these fields.
_COMPARED_FIELDS = frozenset({"role", "type"})
# Words that a template may build control tokens from, as in `'<|' + message.role + '|>'`, or look
# up as names.
_KNOWN_WORDS = frozenset(
    {
        "assistant",
        "developer",
        "function",
        "ipython",
        "model",
        "observation",
        "system",
        "tool",
        "user",
        "array",
        "audio",
        "boolean",
        "image",
        "image_url",
        "integer",
        "json",
        "null",
        "number",
        "object",
        "string",
        "text",
        "video",
        "arguments",
        "content",
        "description",
        "documents",
        "enum",
        "items",
        "id",
        "messages",
        "name",
        "parameters",
        "properties",
        "reasoning_content",
        "required",
        "return",
        "role",
        "thinking",
        "title",
        "tool_call_id",
        "tool_calls",
        "tools",
        "type",
    }
)
_CONTENT_VARIABLES = frozenset({"messages", "tools", "documents"})
_MARK_LENGTH = 12
_FIRST_MARK, _NUM_MARKS = 0x20000, 42_000  # CJK Unified Ideographs Extension B

Ranges = list[tuple[int, int]]


def render(
    template: ChatTemplate,
    inputs: Mapping[str, Any],
    own: Mapping[str, Any],
    special_tokens: Iterable[str],
) -> tuple[str, Ranges]:
    """Return the conversation as text and the ranges of it that come from `inputs`.

    `inputs` are `messages`, `tools` and other variables of the caller; `own` are variables that
    count as the template's, such as `bos_token`. The inputs are rendered unchanged, and again with
    random marks around their texts. If the second text without marks equals the first, the marks
    give the ranges. A template that inspects contents may render another text, so marks are tried
    in three ways: around each text; around each text stripped of white space; around the control
    tokens in it. If all fail, every control token that a text could contribute to counts as the
    caller's.

    Raises `BadModelFile` if the template fails.
    """
    marks = _Marks()
    finder = _ControlTokenFinder(special_tokens)
    texts: list[str] = []

    def collect_unchanged(text: str) -> str:
        texts.append(text)
        return text

    changes: tuple[Callable[[str], str], ...] = (
        collect_unchanged,
        lambda text: marks.write(text, [(0, len(text))]),
        lambda text: marks.write(text.strip(), [(0, len(text.strip()))]),
        lambda text: marks.write(text, finder.control_token_ranges(text)),
    )
    # `tools` and `documents` are always defined, as in `transformers`.
    variables = {"tools": None, "documents": None, **own}
    plain, *marked = template.render(
        [{**variables, **_changed(inputs, change, finder)} for change in changes]
    )
    assert plain is not None
    for text in marked:
        found = None if text is None else marks.read(text)
        if found is not None and found[0] == plain:
            return found
    return plain, finder.possible_control_tokens(plain, texts)


class _Marks:
    """Random start and end marks of rare Chinese characters, new for each rendering.

    They have no case, and are printable: Python's `repr`, which a template uses when it prints an
    object, would escape others. Twelve of 42,000 characters do not occur by chance.
    """

    def __init__(self) -> None:
        self._start, self._end = (
            "".join(chr(_FIRST_MARK + secrets.randbelow(_NUM_MARKS)) for _ in range(_MARK_LENGTH))
            for _ in range(2)
        )
        self._either = re.compile(f"{self._start}|{self._end}")

    def write(self, text: str, ranges: Ranges) -> str:
        """Return `text` with marks around the ascending, non-empty `ranges`."""
        parts: list[str] = []
        done = 0
        for start, end in ranges:
            if start < end:
                parts += (text[done:start], self._start, text[start:end], self._end)
                done = end
        return "".join((*parts, text[done:]))

    def read(self, text: str) -> tuple[str, Ranges] | None:
        """Return `text` without marks and the marked ranges; None if marks do not pair."""
        parts = self._either.split(text)
        found = self._either.findall(text)
        if found != [self._start, self._end] * (len(found) // 2):
            return None
        ranges: Ranges = []
        at = 0
        for number, part in enumerate(parts):
            if number % 2 and part:
                ranges.append((at, at + len(part)))
            at += len(part)
        return "".join(parts), ranges


def _changed(
    inputs: Mapping[str, Any], change: Callable[[str], str], finder: "_ControlTokenFinder"
) -> dict[str, Any]:
    """Copy the caller's variables, of JSON types, with `change` applied to their texts.

    Roles and types of messages, keys of objects and variables such as `reasoning_effort`, which
    templates compare or look up, stay unchanged unless they could be part of a control token.
    """

    def text_of(text: str, is_compared: bool) -> str:
        is_safe = is_compared and (text in _KNOWN_WORDS or not finder.control_token_ranges(text))
        return text if is_safe else change(text)

    def copy(value: Any, is_compared: bool) -> Any:
        if isinstance(value, str):
            return text_of(str.__str__(value), is_compared)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            return {
                text_of(str(key), True): copy(item, key in _COMPARED_FIELDS)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [copy(item, is_compared) for item in value]
        raise TypeError(f"a template variable cannot be a {type(value).__name__}")

    return {name: copy(value, name not in _CONTENT_VARIABLES) for name, value in inputs.items()}


class _ControlTokenFinder:
    """Finds control tokens in a text, and its edges that could become part of one."""

    def __init__(self, special_tokens: Iterable[str]) -> None:
        self._specials = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._whole = re.compile("|".join(map(re.escape, self._specials)) or r"(?!)")
        cuts = [(special, cut) for special in self._specials for cut in range(1, len(special))]
        self._heads = tuple({special[cut:] for special, cut in cuts})
        self._tails = tuple({special[:cut] for special, cut in cuts})

    def control_token_ranges(self, text: str) -> Ranges:
        """Return ranges of control tokens in `text`, and of edges that are part of one.

        White space at the edges is ignored.
        """
        body = text.strip()
        if not body:
            return []
        first = len(text) - len(text.lstrip())
        last = first + len(body)
        ranges = [match.span() for match in self._whole.finditer(text)]
        if any(body in special for special in self._specials):
            ranges.append((first, last))
        if body.startswith(self._heads):
            ranges.append((first, first + _longest(self._heads, body.startswith)))
        if body.endswith(self._tails):
            ranges.append((last - _longest(self._tails, body.endswith), last))
        return _merge(ranges)

    def possible_control_tokens(self, plain: str, texts: Sequence[str]) -> Ranges:
        """Return the ranges in `plain` of all control tokens that `texts` could contribute to."""
        ranges: Ranges = []
        for special in self._specials:
            alone = _ControlTokenFinder([special])
            if any(alone.control_token_ranges(text) for text in texts):
                ranges += (match.span() for match in re.finditer(re.escape(special), plain))
        return _merge(ranges)


def _longest(parts: Iterable[str], fits: Callable[[str], bool]) -> int:
    return max(len(part) for part in parts if fits(part))


def _merge(ranges: Ranges) -> Ranges:
    """Return the union of `ranges`, ascending and without overlap."""
    merged: Ranges = []
    for start, end in sorted(ranges):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
