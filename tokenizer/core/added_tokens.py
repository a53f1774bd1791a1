"""Added tokens: strings that are matched before text is split into words."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import regex

_WORD = regex.compile(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]")
# str.isspace() is true for these; Unicode's White_Space, which `tokenizers` uses, is not.
_NO_SPACES = "\x1c\x1d\x1e\x1f"


@dataclass(frozen=True)
class AddedToken:
    """One entry of `added_tokens`.

    `lstrip` and `rstrip` absorb adjacent white space, `single_word` forbids adjacent word
    characters, `normalized` matches after normalization, `special` marks a control token.
    """

    id: int
    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    special: bool = False


class AddedTokens:
    """Finds added tokens in a text: leftmost, then longest."""

    def __init__(self, tokens: Iterable[AddedToken], normalize: Callable[[str], str]) -> None:
        """Match `tokens` as normalized by `normalize`."""
        self._tokens: dict[str, AddedToken] = {}
        for token in tokens:
            if content := normalize(token.content):  # a normalizer may remove all of it
                self._tokens.setdefault(content, token)
        longest_first = sorted(self._tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def cut(
        self, text: str, content: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int | None, int, int]]:
        """Yield `(id, start, end)` of each token and `(None, start, end)` of the text between.

        `content` are ascending ranges of untrusted text. A special token must not touch any of
        them; another token must be inside or outside, not across a border.
        """
        if not self._tokens:
            if text:
                yield None, 0, len(text)
            return
        ranges = _Ranges(content)
        done = at = 0
        while match := self._pattern.search(text, at):
            token = self._tokens[match[0]]
            start, end = match.span()
            inside, touching = ranges.relation(start, end)
            if touching and not inside:
                # A token of the template may begin inside the match.
                at = start + 1
                continue
            at = end
            if (inside and token.special) or (token.single_word and _has_neighbors(text, match)):
                continue
            if token.lstrip:
                while start > done and _is_space(text[start - 1]):
                    start -= 1
                start = max(start, done)
            if token.rstrip:
                while end < len(text) and _is_space(text[end]):
                    end += 1
            if done < start:
                yield None, done, start
            # The token before may have absorbed all of this one, if it is white space.
            if start < end:
                yield token.id, start, end
            done = end
        if done < len(text):
            yield None, done, len(text)


class _Ranges:
    """Relation of ascending queries to given ranges, in one pass over both."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = ranges
        self._index = 0

    def relation(self, start: int, end: int) -> tuple[bool, bool]:
        """Return whether `start : end` is inside one range, and whether it touches any."""
        ranges = self._ranges
        while self._index < len(ranges) and ranges[self._index][1] <= start:
            self._index += 1
        if self._index == len(ranges):
            return False, False
        low, high = ranges[self._index]
        return low <= start and end <= high, low < end


def _is_space(character: str) -> bool:
    return character.isspace() and character not in _NO_SPACES


def _has_neighbors(text: str, match: re.Match[str]) -> bool:
    """Return whether a word character is adjacent to the match."""
    start, end = match.span()
    before, after = text[max(start - 1, 0) : start], text[end : end + 1]
    return bool(_WORD.match(before) or _WORD.match(after))
