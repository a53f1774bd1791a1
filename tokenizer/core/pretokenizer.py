"""Pre-tokenization: split text into words that are encoded one by one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.core.byte_level import to_symbols
from swiftchat.tokenizer.core.metaspace import Metaspace

__all__ = ["PrefixSpace", "Split", "Step", "Symbols", "cut", "time_limit"]

BEHAVIORS = ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext")

# A pattern that takes longer than this backtracks exponentially.
_SECONDS = 1.0
_SECONDS_PER_CHARACTER = 2e-6


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
            if sum(map(len, words)) == len(text):
                return filter(None, words)
        return filter(None, self._words(list(self._ranges(text)), text))

    def _ranges(self, text: str) -> Iterator[tuple[bool, int, int]]:
        """Yield `(is_match, start, end)` for each part of `text` in order."""
        start = 0
        for match in self.pattern.finditer(text, timeout=time_limit(text)):
            if start < match.start():
                yield self.invert, start, match.start()
            yield not self.invert, match.start(), match.end()
            start = match.end()
        if start < len(text):
            yield self.invert, start, len(text)

    def _words(self, ranges: list[tuple[bool, int, int]], text: str) -> list[str]:
        if self.behavior == "Isolated":
            return [text[start:end] for _, start, end in ranges]
        if self.behavior == "Removed":
            return [text[start:end] for is_match, start, end in ranges if not is_match]
        if self.behavior == "MergedWithNext":
            mirrored = _join(reversed(ranges), contiguous=False)
            return [text[start:end] for start, end in reversed(mirrored)]
        joined = _join(ranges, contiguous=self.behavior == "Contiguous")
        return [text[start:end] for start, end in joined]


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


def cut(text: str, steps: Iterable[Step], at_start: bool = True) -> Iterable[str]:
    """Return the words of `text`, split by each step in turn.

    `at_start` is true if `text` begins the whole text. Raises `BadModelFile` if a pattern exceeds
    its time limit.
    """
    words: Iterable[str] = (text,)
    try:
        for number, step in enumerate(steps):
            if isinstance(step, Metaspace):
                words = list(words)
                # A step may have removed the first word.
                at_start = at_start and text.startswith(tuple(words[:1]))
                words = [
                    part
                    for place, word in enumerate(words)
                    for part in step(word, at_start and place == 0)
                ]
                continue
            words = step(text) if number == 0 else [part for word in words for part in step(word)]
    except TimeoutError:
        raise BadModelFile(
            "tokenizer.json: a pattern of pre_tokenizer exceeds its time limit on this text"
        ) from None
    return words


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


def time_limit(text: str) -> float:
    """Return the seconds that a pattern may take on `text`."""
    return _SECONDS + _SECONDS_PER_CHARACTER * len(text)
