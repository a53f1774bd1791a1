"""A model's call of a tool, as it is stored, exported and given to chat templates."""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from swiftchat.chat.terminal.sanitize import escape_invisible

_ID_CHARACTERS = 9  # Mistral's templates accept only ids of nine letters and digits
_MAX_DEPTH = 64


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _new_id() -> str:
    return os.urandom(_ID_CHARACTERS).hex()[:_ID_CHARACTERS]


@dataclass(frozen=True)
class ToolCall:
    """The name of a tool and its arguments, a JSON object; `id` links the result to the call."""

    name: str
    arguments: dict[str, Any]
    id: str = field(default_factory=_new_id)

    @property
    def text(self) -> str:
        """The call as one line; see `labeled`."""
        return self.labeled(self.name)

    def labeled(self, label: str) -> str:
        """Return the call as one line, `label(a=2, b=3)`, with another name of the tool.

        Names that are no words stand in quotes. What has no glyph is escaped, so that a user who
        approves the call sees all of it.
        """
        arguments = ", ".join(
            f"{name if name.isidentifier() else _json(name)}={_json(value)}"
            for name, value in self.arguments.items()
        )
        return escape_invisible(f"{label}({arguments})")

    def as_object(self) -> dict[str, Any]:
        return {"id": self.id, "name": self.name, "arguments": self.arguments}


def parse_tool_calls(value: object) -> list[ToolCall]:
    """Parse what `as_object` returned, or the `tool_calls` of OpenAI's messages.

    The value is untrusted: entries that are not calls are left out.
    """
    found = []
    for entry in value if isinstance(value, list) else ():
        if not isinstance(entry, dict):
            continue
        function = entry.get("function")
        named = function if isinstance(function, dict) else entry
        name, arguments = named.get("name"), arguments_of(named.get("arguments"))
        if isinstance(name, str) and name and arguments is not None:
            call_id = entry.get("id")
            known_id = {"id": call_id} if isinstance(call_id, str) and call_id else {}
            found.append(ToolCall(name, arguments, **known_id))
    return found


def arguments_of(value: object) -> dict[str, Any] | None:
    """Return arguments, which may be given as JSON text or be missing; None if they are invalid."""
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if value is None or value == "":
        return {}
    return well_formed(value) if isinstance(value, dict) and is_shallow(value) else None


def well_formed(value: Any) -> Any:
    """Return a JSON value that every program reads: as JavaScript would write it.

    A half of a surrogate pair becomes U+FFFD, and null stands for NaN and the infinities, which
    JSON lacks. The value must be shallow.
    """
    match value:
        case str() if not value.isascii():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {well_formed(name): well_formed(part) for name, part in value.items()}
        case list():
            return [well_formed(part) for part in value]
    return value


def is_shallow(value: object, depth: int = _MAX_DEPTH) -> bool:
    """Return whether a JSON value is nested less deeply than Python's recursion would fail."""
    if depth == 0:
        return False
    parts: Iterable[object] = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list):
        parts = value
    return all(is_shallow(part, depth - 1) for part in parts)
