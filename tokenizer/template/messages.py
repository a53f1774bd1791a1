"""Messages as chat templates expect them."""

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["for_template"]

# Names under which reasoning is passed; the first is what most templates read.
_REASONING = ("reasoning_content", "thinking", "reasoning")


def for_template(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies without fields that are None, reasoning under each of its names.

    Both as in `transformers`: templates treat a missing field as missing, and None as text.
    """
    found = []
    for message in messages:
        fields = {name: value for name, value in message.items() if value is not None}
        reasoning = next((fields[name] for name in _REASONING if name in fields), None)
        if reasoning is not None:
            fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
        found.append(fields)
    return found
