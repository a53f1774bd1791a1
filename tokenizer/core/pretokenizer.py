"""Pre-tokenization: split text into words that are encoded one by one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.core.byte_level import to_symbols
from swiftchat.tokenizer.core.matching import spans_of_matches, time_limit
from swiftchat.tokenizer.core.metaspace import Metaspace

BEHAVIORS = ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext")


@dataclass(frozen=True)
class Split:
    """Split at the matches of a pattern.

    `behavior` of a match: `Isolated` is a word of its own, `Removed` is dropped, `Contiguous` is
    one word with adjacent matches, `MergedWithPrevious` and `MergedWithNext` join that neighbor.
    `invert` exchanges matches and the text between them.
    """

    pattern: Any  # a compiled pattern of `regex`, which has no types
    behavior: str = "Isolated"
    invert: bool = False

    def __call__(self, text: str) -> Iterable[str]:
        if self.behavior == "Isolated" and not self.pattern.groups:
            # Fast path: in most models the matches cover the text.
            words: list[str] = self.pattern.findall(text, timeout=time_limit(text))
            if sum(map(len, words)) == len(text) and "" not in words:
                return words
        return [text[start:end] for start, end in self.spans(text)]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the start and end of each word."""
        ranges = list(self._ranges(text))
        if self.behavior == "Isolated":
            found = [(start, end) for _, start, end in ranges]
        elif self.behavior == "Removed":
            found = [(start, end) for is_match, start, end in ranges if not is_match]
        elif self.behavior == "MergedWithNext":
            found = _join(reversed(ranges), contiguous=False)[::-1]
        else:
            found = _join(ranges, contiguous=self.behavior == "Contiguous")
        return [(start, end) for start, end in found if start < end]

    def _ranges(self, text: str) -> Iterator[tuple[bool, int, int]]:
        """Yield `(is_match, start, end)` for each part of `text` in order."""
        start = 0
        for first, last in spans_of_matches(self.pattern, text):
            if start < first:
                yield self.invert, start, first
            yield not self.invert, first, last
            start = last
        if start < len(text):
            yield self.invert, start, len(text)


@dataclass(frozen=True)
class PrefixSpace:
    """Put a space before text that does not begin with one."""

    def __call__(self, text: str) -> Iterable[str]:
        return (text if text.startswith(" ") else " " + text,)


@dataclass(frozen=True)
class Symbols:
    """Write the bytes of text as the symbols of byte-level vocabularies."""

    def __call__(self, text: str) -> Iterable[str]:
        return (to_symbols(text),)


Step = Split | PrefixSpace | Symbols | Metaspace


def cut(text: str, steps: Sequence[Step], num_first: int = 1) -> Iterable[str]:
    """Return the words of `text`, split by each step in turn.

    The first `num_first` characters count as the beginning of the whole text. Raises
    `BadModelFile` if a pattern exceeds its time limit.
    """
    try:
        if any(isinstance(step, Metaspace) for step in steps):
            return _cut_with_places(text, steps, num_first)
        words: Iterable[str] = (text,)
        for number, step in enumerate(steps):
            assert not isinstance(step, Metaspace)
            words = step(text) if number == 0 else [part for word in words for part in step(word)]
    except TimeoutError:
        raise BadModelFile(
            "tokenizer.json: a pattern of pre_tokenizer exceeds its time limit on this text"
        ) from None
    return words


def _cut_with_places(text: str, steps: Sequence[Step], num_first: int) -> list[str]:
    """Return the words, of which those at the beginning may get a prefix."""
    words = [(text, 0)]
    for step in steps:
        if isinstance(step, Split):
            words = [
                (word[start:end], place + start)
                for word, place in words
                for start, end in step.spans(word)
            ]
        elif isinstance(step, Metaspace):
            words = [
                (part, num_first if number else place)
                for word, place in words
                for number, part in enumerate(step(word, place < num_first))
            ]
        else:
            words = [(part, place) for word, place in words for part in step(word)]
    return [word for word, _ in words]


def _join(ranges: Iterable[tuple[bool, int, int]], *, contiguous: bool) -> list[tuple[int, int]]:
    """Join each match to the part before it, unless that is a match too.

    With `contiguous`, join adjacent parts of the same kind instead.
    """
    joined: list[tuple[int, int]] = []
    before: bool | None = None
    for is_match, start, end in ranges:
        joins = is_match == before if contiguous else is_match and before is False
        if joins and joined:
            joined[-1] = min(start, joined[-1][0]), max(end, joined[-1][1])
        else:
            joined.append((start, end))
        before = is_match
    return joined
