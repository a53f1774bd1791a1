"""How SentencePiece rewrites text before it looks for pieces."""

import re
from collections.abc import Iterable, Iterator

from swiftchat.tokenizer.sentencepiece.charsmap import Charsmap
from swiftchat.tokenizer.sentencepiece.model import NormalizerSpec

__all__ = ["SentencePieceNormalizer"]

_SPACES = re.compile(" {2,}")


class SentencePieceNormalizer:
    """`Normalizer::Normalize` of SentencePiece, O(text · longest rule).

    From left to right: a user-defined piece stays as it is; else the longest key of the
    charsmap is replaced; else the character stays. Then spaces: extra ones go, the rest become
    ▁, and one more comes in front. A replacement or piece loses spaces at its beginning only,
    which is why the parts are kept apart until then.
    """

    def __init__(self, spec: NormalizerSpec, user_defined: Iterable[str]) -> None:
        self._spec = spec
        self._charsmap = Charsmap(spec.charsmap)
        pieces = sorted(user_defined, key=len, reverse=True)
        self._user_defined = frozenset(pieces)
        protected = "|".join(map(re.escape, pieces))
        parts = [f"(?:{protected})" if protected else "", self._charsmap.pattern()]
        source = "|".join(filter(None, parts))
        self._special = re.compile(source) if source else None
        self._space = "▁" if spec.escape_whitespaces else " "

    def normalize(self, text: str) -> str:
        """Return `text` as the pieces spell it."""
        spec = self._spec
        parts = list(self._parts(text))
        if spec.remove_extra_whitespaces:
            if all(not part.strip(" ") and (plain or part == " ") for part, plain in parts):
                return ""
            text = "".join(_without_extra_spaces(parts))
        elif parts:
            text = "".join(part for part, _ in parts)
        else:
            return ""
        text = text.replace(" ", self._space)
        if spec.add_dummy_prefix and not spec.whitespace_as_suffix:
            text = self._space + text
        if spec.remove_extra_whitespaces:
            text = text.rstrip(self._space)
        if spec.add_dummy_prefix and spec.whitespace_as_suffix:
            text += self._space
        return text

    def _parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """The text in parts, and whether a part is as it was and no user-defined piece."""
        if self._special is None:
            if text:
                yield text, True
            return
        done = at = 0
        while match := self._special.search(text, at):
            at = match.start()
            found = match[0]
            if found in self._user_defined:
                end, new = match.end(), found
            else:
                key = self._charsmap.longest(text, at)
                if key is None:
                    at += 1
                    continue
                end, new = key
            if done < at:
                yield text[done:at], True
            yield new, False
            done = at = end
        if done < len(text):
            yield text[done:], True


def _without_extra_spaces(parts: Iterable[tuple[str, bool]]) -> Iterator[str]:
    after_space = True
    for part, plain in parts:
        text = _SPACES.sub(" ", part) if plain else part
        if after_space:
            text = text.lstrip(" ")
        if text:
            after_space = text.endswith(" ")
            yield text
