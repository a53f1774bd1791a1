"""The markers of reasoning, by which an engine knows it and ends it when its budget is spent."""

from dataclasses import dataclass
from typing import Any, Self

from swiftchat.errors import UsageError


@dataclass(frozen=True)
class ReasoningMarkers:
    """The texts around the reasoning of an answer, as UTF-8, and the ids that end it.

    Any of `opens` begins reasoning, at the beginning of the answer and after other reasoning;
    `close` ends it. `is_open`: the prompt has begun it. `pieces` has the bytes of each id that can
    be part of a marker or of the space before one; any other id is text. `ending` are the ids that
    follow when the budget is spent: they write `close`, and more if the format has it.
    Raises `UsageError` for an empty marker or ending.
    """

    opens: tuple[bytes, ...]
    close: bytes
    is_open: bool
    pieces: tuple[tuple[int, bytes], ...]
    ending: tuple[int, ...]

    def __post_init__(self) -> None:
        if not (self.close and self.ending) or b"" in self.opens:
            raise UsageError("a marker of the reasoning is empty")

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Self:
        """Return the markers of `dataclasses.asdict`, whose tuples msgpack made lists."""
        return cls(
            tuple(wire["opens"]),
            wire["close"],
            wire["is_open"],
            tuple((token, piece) for token, piece in wire["pieces"]),
            tuple(wire["ending"]),
        )
