"""The grammar of an answer, with the bytes of all tokens."""

from dataclasses import dataclass
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

    def __post_init__(self) -> None:
        if not self.pieces or not self.stop_ids:
            raise UsageError("a vocabulary needs tokens and one that ends an answer")
        if any(not 0 <= i < len(self.pieces) for i in (*self.special, *self.stop_ids)):
            raise UsageError("an id is outside the vocabulary")


@dataclass(frozen=True)
class ConstraintSpec:
    """What an answer must match: a `grammar` in llguidance's JSON format.

    The text `begun` at the end of the prompt is the beginning of the answer.
    """

    grammar: str
    vocabulary: Vocabulary
    begun: str = ""

    def to_wire(self) -> dict[str, Any]:
        vocabulary = self.vocabulary
        return {
            "grammar": self.grammar,
            "begun": self.begun,
            "pieces": vocabulary.pieces,
            "special": vocabulary.special,
            "stop_ids": vocabulary.stop_ids,
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Self:
        """Raises `UsageError` as `Vocabulary` does."""
        parts = (tuple(wire[name]) for name in ("pieces", "special", "stop_ids"))
        return cls(wire["grammar"], Vocabulary(*parts), wire["begun"])
