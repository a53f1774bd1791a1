"""Words seen before, with their ids."""

from collections.abc import Callable

__all__ = ["WordCache"]

_MOST_WORDS = 1 << 16
_LONGEST_WORD = 64


class WordCache(dict[str, list[int]]):
    """Ids by word; a word that is not there is encoded on the way.

    Bounded: it starts anew once it holds 65,536 words, and keeps none longer than 64
    characters. A dict, so that words already known are looked up without a line of Python.
    """

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> list[int]:
        ids = self._encode(word)
        if len(word) <= _LONGEST_WORD:
            if len(self) >= _MOST_WORDS:
                self.clear()
            self[word] = ids
        return ids
