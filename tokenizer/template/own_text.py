"""Text of a template with the ranges of it that the template itself wrote."""

import re
from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from typing import Any, SupportsIndex

from markupsafe import Markup

Ranges = Sequence[tuple[int, int]]

# Of the parts of one text; their ranges would take too much memory.
_MAX_PARTS = 20_000
_PERCENT = re.compile(r"%(.?)", re.DOTALL)


class OwnText(str):
    """A `str` that knows which of its characters the template wrote; the others are the caller's.

    The operations below keep the ranges. Every other one returns a plain `str`, as it does for
    other subclasses: all of it counts as the caller's, so that a forgotten operation can lose a
    control token of the template, but never make one of the caller's text.
    """

    __slots__ = ("_own",)
    _own: Ranges

    def __new__(cls, text: str = "", ranges: Ranges = ()) -> "OwnText":
        """`ranges` are ascending and do not overlap."""
        made = super().__new__(cls, text)
        made._own = ranges
        return made

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        if isinstance(other, str) and not isinstance(other, Markup):
            return join_texts((self, other))
        # `Markup` escapes what it is added to, an undefined value says that it is none.
        return NotImplemented if hasattr(type(other), "__radd__") else str.__add__(self, other)

    def __radd__(self, other: str) -> str:
        return join_texts((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> str:
        text = str.__mul__(self, times)
        if times.__index__() * max(len(self._own), 1) > _MAX_PARTS:
            return text
        return join_texts([self] * times.__index__())

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        found = str.__getitem__(self, key)
        if isinstance(key, slice):
            start, _, step = key.indices(len(self))
            return self._part(start, len(found)) if step == 1 else found
        start = key.__index__()
        return self._part(start if start >= 0 else start + len(self), 1)

    def __mod__(self, values: Any) -> str:
        """Format; the ranges are kept if all directives are `%s`."""
        plain = str.__mod__(self, values)
        values = values if isinstance(values, tuple) else (values,)
        found = list(_PERCENT.finditer(self))
        if any(match[1] != "s" for match in found) or len(found) != len(values):
            return plain
        pieces: list[str] = []
        done = 0
        for match, value in zip(found, values, strict=True):
            pieces += (self[done : match.start()], as_text(value))
            done = match.end()
        return join_texts((*pieces, self[done:]))

    def lstrip(self, chars: str | None = None, /) -> str:
        length = len(str.lstrip(self, chars))
        return self._part(len(self) - length, length)

    def rstrip(self, chars: str | None = None, /) -> str:
        return self._part(0, len(str.rstrip(self, chars)))

    def strip(self, chars: str | None = None, /) -> str:
        start = len(self) - len(str.lstrip(self, chars))
        return self._part(start, len(str.strip(self, chars)))

    def removeprefix(self, prefix: str, /) -> str:
        length = len(str.removeprefix(self, prefix))
        return self._part(len(self) - length, length)

    def removesuffix(self, suffix: str, /) -> str:
        return self._part(0, len(str.removesuffix(self, suffix)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        return self._parts(str.splitlines(self, keepends), "" if keepends else None)

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        before, middle, after = self._parts(str.partition(self, sep), "")
        return before, middle, after

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        before, middle, after = self._parts(str.rpartition(self, sep), "")
        return before, middle, after

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        plain = str.replace(self, old, new, count)
        if not old:
            return plain
        return joined(new, self.split(old, count))

    def join(self, texts: Iterable[str], /) -> str:
        pieces = list(texts)
        str.join(self, pieces)  # raises for what is not text
        return joined(self, pieces)

    def lower(self) -> str:
        return same_length(self, str.lower(self))

    def upper(self) -> str:
        return same_length(self, str.upper(self))

    def title(self) -> str:
        return same_length(self, str.title(self))

    def capitalize(self) -> str:
        return same_length(self, str.capitalize(self))

    def casefold(self) -> str:
        return same_length(self, str.casefold(self))

    def swapcase(self) -> str:
        return same_length(self, str.swapcase(self))

    def _part(self, start: int, length: int) -> str:
        end = start + length
        return OwnText(str.__getitem__(self, slice(start, end)), _clipped(self._own, start, end))

    def _parts(self, texts: Sequence[str], sep: str | None) -> list[str]:
        """Return parts of this text, in order and `sep` apart (None: white space)."""
        if len(texts) > _MAX_PARTS:
            return list(texts)
        found: list[str] = []
        ranges, first = self._own, 0
        at = 0
        for text in texts:
            start = str.find(self, text, at) if sep is None else at
            end = start + len(text)
            while first < len(ranges) and ranges[first][1] <= start:
                first += 1
            last = first
            while last < len(ranges) and ranges[last][0] < end:
                last += 1
            found.append(OwnText(text, _clipped(ranges[first:last], start, end)))
            at = end + len(sep or "")
        return found


class _OwnMarkup(Markup):
    """What the filter `safe` makes of an `OwnText`."""

    __slots__ = ("_own",)
    _own: Ranges


def own(value: Any) -> Any:
    """Return a text, or a list, tuple or mapping with texts, as the template's."""
    if isinstance(value, str):
        return OwnText(value, ((0, len(value)),) if value else ())
    if isinstance(value, list | tuple):
        return type(value)(map(own, value))
    if isinstance(value, Mapping):
        return {own(key): own(item) for key, item in value.items()}
    return value


def with_ranges(value: Any) -> Any:
    """Return a caller's text as one whose operations keep the ranges of what they add."""
    return OwnText(value) if type(value) is str else value


def own_ranges(text: str) -> Ranges:
    """Return the ranges of a text that the template wrote."""
    ranges: Ranges = getattr(text, "_own", ())
    return ranges


def as_text(value: Any) -> str:
    """Return `str(value)`; numbers, booleans and None count as the template's."""
    if isinstance(value, str):
        # Other operations on a `_OwnMarkup` return one without ranges.
        return OwnText(value, own_ranges(value)) if isinstance(value, _OwnMarkup) else str(value)
    text = str(value)
    return own(text) if value is None or isinstance(value, bool | int | float) else text


def marked_safe(value: Any) -> Markup:
    """Return what Jinja's filter `safe` does."""
    text = as_text(value)
    markup = _OwnMarkup(text)
    markup._own = own_ranges(text)
    return markup


def join_texts(texts: Iterable[str]) -> str:
    """Concatenate texts, with their ranges."""
    pieces = list(texts)
    ranges: list[tuple[int, int]] = []
    at = 0
    for piece in pieces:
        for low, high in own_ranges(piece):
            if ranges and ranges[-1][1] == at + low:
                ranges[-1] = ranges[-1][0], at + high
            else:
                ranges.append((at + low, at + high))
        at += len(piece)
    text = "".join(pieces)
    return OwnText(text, ranges) if ranges else text


def joined(separator: str, texts: Iterable[str]) -> str:
    """Concatenate texts with a separator between two."""
    pieces: list[str] = []
    for text in texts:
        pieces += (separator, text)
    return join_texts(pieces[1:])


def same_length(source: str, text: str) -> str:
    """Return `text`, made from `source` character by character, with its ranges."""
    ranges = own_ranges(source)
    return OwnText(text, ranges) if ranges and len(text) == len(source) else text


def formatted(
    text: OwnText, formatter: Formatter, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """Format as `formatter` does; the ranges are kept if all of `text` is the template's."""
    parts = list(formatter.parse(text))
    plain = formatter.vformat(text, args, kwargs)
    if own_ranges(text) != own_ranges(own(text)) or any(
        "{" in (spec or "") for *_, spec, _ in parts
    ):
        return plain
    pieces: list[str] = []
    numbers = iter(range(len(parts)))
    for literal, name, spec, conversion in parts:
        pieces.append(own(literal))
        if name is None:
            continue
        name = name if name[:1] not in ("", ".", "[") else f"{next(numbers)}{name}"
        value, _ = formatter.get_field(name, args, kwargs)
        if not spec and not conversion:
            pieces.append(as_text(value))
        else:
            field = f"{{0{'!' + conversion if conversion else ''}:{spec}}}"
            pieces.append(formatter.vformat(field, (value,), {}))
    return join_texts(pieces)


def _clipped(ranges: Ranges, start: int, end: int) -> Ranges:
    """Return the parts of `ranges` inside `start : end`, relative to `start`."""
    return [
        (max(low, start) - start, min(high, end) - start)
        for low, high in ranges
        if max(low, start) < min(high, end)
    ]
