"""What a request adds to the base model: weighted adapters and a soft prompt."""

from dataclasses import dataclass
from typing import Any, Self

MAX_SCALE = 1000.0  # of an adapter, and the negative of the smallest

Wire = dict[str, Any]


@dataclass(frozen=True)
class Tuning:
    """Adapters with the scales of their changes, and a soft prompt; all are absolute paths.

    Scale 0 is the base model, 1 the adapter as it was trained; the changes of several adapters are
    added.
    """

    adapters: tuple[tuple[str, float], ...] = ()
    soft_prompt: str | None = None

    def __bool__(self) -> bool:
        return bool(self.adapters) or self.soft_prompt is not None

    def to_wire(self) -> Wire:
        return {"adapters": [list(each) for each in self.adapters], "prompt": self.soft_prompt}

    @classmethod
    def from_wire(cls, wire: Wire) -> Self:
        return cls(tuple((path, scale) for path, scale in wire["adapters"]), wire["prompt"])
