"""The grammar of an answer, with the bytes of all tokens, as llguidance needs them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from swiftchat.errors import UsageError


@dataclass(frozen=True)
class Vocabulary:
    """`pieces` has the bytes of each token id; ids of `special` tokens are no text.

    One of `stop_ids` ends a constrained answer. Raises `UsageError` for ids outside the vocabulary.
    """

    pieces: tuple[bytes, ...]
    special: tuple[int, ...]
    stop_ids: tuple[int, ...]
    _longest: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.pieces or not self.stop_ids:
            raise UsageError("a vocabulary needs tokens and one that ends an answer")
        if any(not 0 <= i < len(self.pieces) for i in (*self.special, *self.stop_ids)):
            raise UsageError("an id is outside the vocabulary")
        object.__setattr__(self, "_longest", max(map(len, self.pieces)))

    @cached_property
    def tokenizer(self) -> Any:  # llguidance's type is not exported
        """The tokenizer of llguidance, made once; it takes some tenths of a second."""
        import llguidance

        wrapper = llguidance.TokenizerWrapper(_Tokens(self))
        return llguidance.LLTokenizer(wrapper, len(self.pieces), list(self.stop_ids))

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        special = set(self.special)
        return {p: i for i, p in reversed(list(enumerate(self.pieces))) if p and i not in special}

    def tokenize(self, data: bytes) -> list[int]:
        """Return the ids of the longest pieces from left to right, without bytes that have none."""
        ids, start = [], 0
        while start < len(data):
            ends = range(min(len(data), start + self._longest), start, -1)
            end = next((end for end in ends if data[start:end] in self._ids), None)
            if end is not None:
                ids.append(self._ids[data[start:end]])
            start = start + 1 if end is None else end
        return ids


@dataclass(frozen=True)
class ConstraintSpec:
    """What an answer must match: a `grammar` in llguidance's JSON format."""

    grammar: str
    vocabulary: Vocabulary

    def to_wire(self) -> dict[str, Any]:
        vocabulary = self.vocabulary
        return {
            "grammar": self.grammar,
            "pieces": vocabulary.pieces,
            "special": vocabulary.special,
            "stop_ids": vocabulary.stop_ids,
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Self:
        """Raises `UsageError` as `Vocabulary` does."""
        parts = (tuple(wire[name]) for name in ("pieces", "special", "stop_ids"))
        return cls(wire["grammar"], Vocabulary(*parts))


class _Tokens:
    """A vocabulary with the attributes that llguidance reads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.stop_ids[0]
        self.bos_token_id = None
        self.tokens: Sequence[bytes] = vocabulary.pieces
        self.special_token_ids = list(vocabulary.special)
        self._vocabulary = vocabulary

    def __call__(self, data: bytes) -> list[int]:
        return self._vocabulary.tokenize(data)
