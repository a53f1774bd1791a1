"""The tokens of a vocabulary as llguidance needs them."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from swiftchat.engine.api.vocabulary import Vocabulary

# Text before another one: what a tokenizer does to the beginning of a text happens there.
_BEFORE = ("", "\n")


class TokenTrie:
    """The trie that llguidance makes of a vocabulary, and the ids of texts that grammars force.

    `encode` returns the ids of a text as the model knows them. Without it, and for a text that its
    ids do not spell, the longest pieces are taken. The trie takes some tenths of a second.
    """

    def __init__(
        self, vocabulary: Vocabulary, encode: Callable[[str], list[int]] | None = None
    ) -> None:
        import llguidance

        self.vocabulary, self._encode = vocabulary, encode
        # An id that ends an answer is no text, even if the vocabulary has it as an ordinary token.
        self._no_text = {*vocabulary.special, *vocabulary.stop_ids}
        wrapper = llguidance.TokenizerWrapper(_Tokens(vocabulary, self._no_text, self.tokenize))
        self.tokenizer: Any = llguidance.LLTokenizer(  # its type is not exported
            wrapper, len(vocabulary.pieces), list(vocabulary.stop_ids)
        )

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """The lowest id of each text."""
        texts = [(piece, i) for i, piece in enumerate(self.vocabulary.pieces) if piece]
        return {piece: i for piece, i in reversed(texts) if i not in self._no_text}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=1)

    def tokenize(self, data: bytes) -> list[int]:
        """Return the ids of a text inside another one, up to a byte that has no piece."""
        ids = self._encoded(data)
        return self._longest_pieces(data) if ids is None else ids

    def _encoded(self, data: bytes) -> list[int] | None:
        """Return the tokenizer's ids, None if they do not spell the text."""
        if self._encode is None:
            return None
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        for before in _BEFORE:
            first = self._encode(before) if before else []
            ids = self._encode(before + text)
            if ids[: len(first)] == first and self._spell(ids[len(first) :]) == data:
                return ids[len(first) :]
        return None

    def _spell(self, ids: Sequence[int]) -> bytes | None:
        """Return the text of ids, None if one of them is no text."""
        pieces = self.vocabulary.pieces
        if any(i >= len(pieces) or i in self._no_text for i in ids):
            return None
        return b"".join(pieces[i] for i in ids)

    def _longest_pieces(self, data: bytes) -> list[int]:
        ids, start = [], 0
        while start < len(data):
            ends = range(min(len(data), start + self._longest), start, -1)
            end = next((end for end in ends if data[start:end] in self._ids), None)
            if end is None:
                break
            ids.append(self._ids[data[start:end]])
            start = end
        return ids


class _Tokens:
    """A vocabulary with the attributes that llguidance reads."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        no_text: Iterable[int],
        tokenize: Callable[[bytes], list[int]],
    ) -> None:
        self.eos_token_id = vocabulary.stop_ids[0]
        self.bos_token_id = None
        self.tokens: Sequence[bytes] = vocabulary.pieces
        self.special_token_ids = list(no_text)
        self._tokenize = tokenize

    def __call__(self, data: bytes) -> list[int]:
        return self._tokenize(data)
