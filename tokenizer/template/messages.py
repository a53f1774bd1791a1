"""Messages as chat templates expect them."""

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["messages_for_template"]

# Field names of reasoning; most templates read the first.
_REASONING = ("reasoning_content", "thinking", "reasoning")


def messages_for_template(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copy messages without fields that are None, and with reasoning under each of its names.

    Both as in `transformers`: a template would render None as text.
    """
    found = []
    for message in messages:
        fields = {name: value for name, value in message.items() if value is not None}
        reasoning = next((fields[name] for name in _REASONING if name in fields), None)
        if reasoning is not None:
            fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
        found.append(fields)
    return found
