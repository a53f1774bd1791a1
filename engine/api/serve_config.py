"""How an engine serves terminals."""

from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class ServeConfig:
    """How an engine serves other terminals than the one that started it.

    `socket` is the path of a Unix socket, `name` the model's name for these terminals.
    `keep_alive_s`: the engine ends when no terminal has used it for this time; None is never.
    `endpoint` is the URL of the HTTP endpoint in front of the engine, shown by `swiftchat ps`.
    `stays`: it does not end with the terminal that started it, which is a terminal as others.
    """

    socket: str
    name: str
    keep_alive_s: float | None = None
    endpoint: str | None = None
    stays: bool = False

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Self:
        return cls(**wire)
