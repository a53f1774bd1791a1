"""The normalizer of `tokenizer.json`, bounded in its time and in the length of its result."""

import base64
import binascii
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Never, Protocol

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.core.matching import spans_of_matches
from swiftchat.tokenizer.huggingface.checks import compiled, flag, parts, reject, reject_kind, text
from swiftchat.tokenizer.huggingface.precompiled import PrecompiledCharsmap

# White_Space of Unicode; str.strip() would take \x1c to \x1f as well.
WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_UNICODE_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
# The compatibility forms of Unicode make up to 18 characters of one.
_MAX_GROWTH = 32
_MAX_MORE_CHARACTERS = 1 << 12


class _Step(Protocol):
    """One change of a text.

    `count_first` returns how many leading characters of the changed text stem from the first
    character of the text before all steps, given that number for the text before this one.
    """

    def apply(self, value: str, max_length: int) -> str: ...

    def count_first(self, value: str, num_first: int) -> int: ...


class Normalizer:
    """Applies the steps of `normalizer` in their order."""

    def __init__(self, spec: Any) -> None:
        """Read the steps; raises `BadModelFile` naming the wrong field."""
        self._steps = [_step(p, field) for field, p in parts(spec, "normalizer", "normalizers")]

    def __call__(self, value: str) -> str:
        """Return the changed text; raises `BadModelFile` if it is many times longer."""
        max_length = _max_length(value)
        for step in self._steps:
            value = step.apply(value, max_length)
        return value

    def count_first(self, value: str) -> int:
        """Return how many leading characters of the changed text stem from the first character."""
        max_length = _max_length(value)
        num_first = 1
        for step in self._steps:
            num_first = step.count_first(value, num_first)
            value = step.apply(value, max_length)
        return num_first


@dataclass(frozen=True)
class Replace:
    """Replace each match of a pattern of `regex`, or of a literal, by `content`."""

    pattern: Any
    literal: str | None
    content: str

    def apply(self, value: str, max_length: int) -> str:
        """Return the changed text; raises `BadModelFile` if it would be longer."""
        if not value:  # not even a pattern that matches nothing changes it
            return value
        if self.literal is not None:
            more = value.count(self.literal) * (len(self.content) - len(self.literal))
            if len(value) + more > max_length:
                _reject_growth()
            return value.replace(self.literal, self.content)
        changed: list[str] = []
        done = length = 0
        try:
            for start, end in spans_of_matches(self.pattern, value):
                changed += (value[done:start], self.content)
                length += start - done + len(self.content)
                if length > max_length:
                    _reject_growth()
                done = end
        except TimeoutError:
            raise BadModelFile(
                "tokenizer.json: a pattern of normalizer exceeds its time limit on this text"
            ) from None
        return "".join((*changed, value[done:]))

    def count_first(self, value: str, num_first: int) -> int:
        count = done = 0
        for start, end in spans_of_matches(self.pattern, value):
            if start > num_first or done > num_first:
                break
            count += start - done
            done = end
            if self.content:
                # New characters have the place of the last one that they replace, or of the one
                # before them.
                if end > num_first:
                    return count
                count += len(self.content)
        return count + max(num_first - done, 0)

    def __call__(self, value: str) -> str:
        """Return the changed text within the usual limit of its length."""
        return self.apply(value, _max_length(value))


@dataclass(frozen=True)
class _UnicodeForm:
    form: Any

    def apply(self, value: str, max_length: int) -> str:
        return _checked(unicodedata.normalize(self.form, value), max_length)

    def count_first(self, value: str, num_first: int) -> int:
        changed = unicodedata.normalize(self.form, value[:num_first])
        is_joined = not unicodedata.normalize(self.form, value).startswith(changed)
        # A new character that is joined with the next one has the place of that.
        return len(changed) - (is_joined and len(changed) > num_first)


@dataclass(frozen=True)
class _Prepend:
    prefix: str

    def apply(self, value: str, max_length: int) -> str:
        return _checked(self.prefix + value, max_length) if value else value

    def count_first(self, value: str, num_first: int) -> int:
        return num_first + len(self.prefix) if value and num_first else num_first


@dataclass(frozen=True)
class _Strip:
    left: str
    right: str

    def apply(self, value: str, max_length: int) -> str:
        return value.lstrip(self.left).rstrip(self.right)

    def count_first(self, value: str, num_first: int) -> int:
        return max(num_first - (len(value) - len(value.lstrip(self.left))), 0)


@dataclass(frozen=True)
class _Charsmap:
    replace: Callable[[str], str]

    def apply(self, value: str, max_length: int) -> str:
        return _checked(self.replace(value), max_length)

    def count_first(self, value: str, num_first: int) -> int:
        # `tokenizers` gives a character the place of one that was removed before it.
        return num_first


def replacement(part: dict[str, Any], field: str) -> Replace:
    """Read a step that replaces; raises `BadModelFile`."""
    return Replace(
        compiled(part, field), part["pattern"].get("String"), text(part, "content", field)
    )


def _step(part: dict[str, Any], field: str) -> _Step:
    kind = part.get("type")
    if kind in _UNICODE_FORMS:
        return _UnicodeForm(kind)
    if kind == "Prepend":
        return _Prepend(text(part, "prepend", field))
    if kind == "Replace":
        return replacement(part, field)
    if kind == "Strip":
        left = WHITE_SPACE if flag(part, "strip_left", field, default=True) else ""
        right = WHITE_SPACE if flag(part, "strip_right", field, default=True) else ""
        return _Strip(left, right)
    if kind == "Precompiled":
        try:
            source = text(part, "precompiled_charsmap", field, max_characters=1 << 24)
            blob = base64.b64decode(source, validate=True)
        except (binascii.Error, ValueError):
            reject(f"{field}.precompiled_charsmap", "is not valid base64")
        return _Charsmap(PrecompiledCharsmap(blob).replace_graphemes)
    return reject_kind(f"{field}.type", kind)


def _max_length(value: str) -> int:
    return _MAX_GROWTH * len(value) + _MAX_MORE_CHARACTERS


def _checked(value: str, max_length: int) -> str:
    return value if len(value) <= max_length else _reject_growth()


def _reject_growth() -> Never:
    reject("normalizer", f"makes a text more than {_MAX_GROWTH} times longer")
