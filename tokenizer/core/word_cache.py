"""A bounded cache from words to ids."""

from collections.abc import Callable

_MAX_WORDS = 1 << 16
_MAX_WORD_CHARACTERS = 64


class WordCache(dict[str, list[int]]):
    """Ids by word; a missing word is encoded.

    It is cleared when it holds 65,536 words, and stores none longer than 64 characters. Being a
    dict, it looks up known words without running Python code.
    """

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> list[int]:
        ids = self._encode(word)
        if len(word) <= _MAX_WORD_CHARACTERS:
            if len(self) >= _MAX_WORDS:
                self.clear()
            self[word] = ids
        return ids
