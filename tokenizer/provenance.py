"""Which parts of a rendered template come from the messages, so that they cannot give orders."""

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from swiftchat.tokenizer.template import ChatTemplate

__all__ = ["render"]

# Fields that templates compare with; nothing is written around their values.
_COMPARED = frozenset({"role", "type"})
_MARK_LENGTH = 12

Ranges = list[tuple[int, int]]


def render(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    special_tokens: Iterable[str],
) -> tuple[str, Ranges]:
    """Return the conversation as text and the ranges of it that come from the messages.

    The messages are rendered as they are, and again with marks nobody can guess around what
    they contain. Where the second text without the marks is the first, the marks tell what
    comes from where. A template that looks at the contents may not come to the same text, so
    there are three ways to put the marks: around each text; around each text stripped of
    white space, for templates that strip it; and around the control tokens in it alone. If
    all fail, every control token that a message could have part in counts as from a message.

    Raises `BadModelFile` when the template fails.
    """
    marks = _Marks()
    guard = _Guard(special_tokens)
    ways: tuple[Callable[[str], str], ...] = (
        str,
        lambda text: marks.write(text, [(0, len(text))]),
        lambda text: marks.write(text.strip(), [(0, len(text.strip()))]),
        lambda text: marks.write(text, guard.dangers(text)),
    )
    conversations = [[_map_texts(message, way) for message in messages] for way in ways]
    # `tools` and `documents` are always there, as in `transformers`.
    given = {"tools": None, "documents": None, **_map_texts(variables, str)}
    plain, *marked = template.render([{**given, "messages": each} for each in conversations])
    assert plain is not None
    for text in marked:
        found = None if text is None else marks.read(text)
        if found is not None and found[0] == plain:
            return found
    return plain, guard.suspects(plain, list(_texts(messages)))


class _Marks:
    """A start and an end mark of private-use characters, new for each rendering."""

    def __init__(self) -> None:
        self._start, self._end = (
            "".join(chr(0xF0000 + secrets.randbelow(0xFFFE)) for _ in range(_MARK_LENGTH))
            for _ in range(2)
        )
        self._either = re.compile(f"{self._start}|{self._end}")

    def write(self, text: str, ranges: Ranges) -> str:
        """`text` with marks around `ranges`, ascending; empty ones get none."""
        parts: list[str] = []
        done = 0
        for start, end in ranges:
            if start < end:
                parts += (text[done:start], self._start, text[start:end], self._end)
                done = end
        return "".join((*parts, text[done:]))

    def read(self, text: str) -> tuple[str, Ranges] | None:
        """`text` without marks and the ranges that were between; None if they do not pair."""
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


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of `value`, made of JSON's types, with every text but the compared ones changed."""
    if isinstance(value, str):
        return change(str.__str__(value))
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {
            str(key): item if key in _COMPARED and isinstance(item, str)
            else _map_texts(item, change)
            for key, item in value.items()
        }  # fmt: skip
    if isinstance(value, list | tuple):
        return [_map_texts(item, change) for item in value]
    raise TypeError(f"a template cannot be given a {type(value).__name__}")


def _texts(value: Any) -> Iterator[str]:
    """All texts in the messages but the compared ones."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _COMPARED or not isinstance(item, str):
                yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


class _Guard:
    """Knows what in a text could be a control token, or become one with what is around it."""

    def __init__(self, special_tokens: Iterable[str]) -> None:
        self._specials = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._whole = re.compile("|".join(map(re.escape, self._specials)) or r"(?!)")
        cuts = [(special, cut) for special in self._specials for cut in range(1, len(special))]
        self._heads = tuple({special[cut:] for special, cut in cuts})
        self._tails = tuple({special[:cut] for special, cut in cuts})

    def dangers(self, text: str) -> Ranges:
        """The control tokens in `text`, and what of one its edges could be, white space aside."""
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

    def suspects(self, plain: str, texts: Sequence[str]) -> Ranges:
        """The places in `plain` of all control tokens that `texts` could have part in."""
        ranges: Ranges = []
        for special in self._specials:
            alone = _Guard([special])
            if any(alone.dangers(text) for text in texts):
                ranges += (match.span() for match in re.finditer(re.escape(special), plain))
        return _merge(ranges)


def _longest(parts: Iterable[str], fits: Callable[[str], bool]) -> int:
    return max(len(part) for part in parts if fits(part))


def _merge(ranges: Ranges) -> Ranges:
    """The same places, ascending and without overlap."""
    merged: Ranges = []
    for start, end in sorted(ranges):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
