"""Added tokens: strings that are cut out of a text before it is split into words."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import regex

__all__ = ["AddedToken", "AddedTokens"]

_WORD = regex.compile(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]")
# str.isspace() counts these; White_Space of Unicode, which is meant here, does not.
_NO_SPACES = "\x1c\x1d\x1e\x1f"


@dataclass(frozen=True)
class AddedToken:
    """One entry of `added_tokens`.

    `lstrip` and `rstrip` take in the white space beside it, `single_word` needs it to stand
    between characters that are no letters, `normalized` looks for it after normalization.
    `special` marks the control tokens.
    """

    id: int
    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    special: bool = False


class AddedTokens:
    """Finds added tokens in a text, leftmost first, the longest of those that start together."""

    def __init__(self, tokens: Iterable[AddedToken], normalize: Callable[[str], str]) -> None:
        """Look for the `tokens`, all of one kind, in the form that `normalize` gives them."""
        self._tokens: dict[str, AddedToken] = {}
        for token in tokens:
            self._tokens.setdefault(normalize(token.content), token)
        longest_first = sorted(filter(None, self._tokens), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def cut(
        self, text: str, content: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int | None, int, int]]:
        """Yield `(id, start, end)` of each token and `(None, start, end)` of the text between.

        `content` are the ranges, ascending, that somebody else wrote into the text. A special
        token counts only where it touches none of them, any other where it is not half in one.
        """
        if not self._tokens:
            if text:
                yield None, 0, len(text)
            return
        reader = _Ranges(content)
        done = at = 0
        while match := self._pattern.search(text, at):
            token = self._tokens[match[0]]
            start, end = match.span()
            inside, touching = reader.relation(start, end)
            if touching and not inside:
                # It must not hide a token of the template that begins within it.
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
            # White space taken in by the token before can be all that this one consists of.
            if start < end:
                yield token.id, start, end
            done = end
        if done < len(text):
            yield None, done, len(text)


class _Ranges:
    """How ranges asked for in ascending order lie to given ranges, in one pass over both."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = ranges
        self._index = 0

    def relation(self, start: int, end: int) -> tuple[bool, bool]:
        """Whether `start : end` lies inside one of the ranges, and whether it touches any."""
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
    """Whether a letter, digit or the like stands directly before or after the match."""
    start, end = match.span()
    before, after = text[max(start - 1, 0) : start], text[end : end + 1]
    return bool(_WORD.match(before) or _WORD.match(after))
