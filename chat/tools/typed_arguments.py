"""Arguments of calls in formats without types, where everything is text."""

import ast
import json
from collections.abc import Mapping
from typing import Any

from swiftchat.chat.history.tool_call import is_shallow

_MAX_PYTHON_CHARACTERS = 65_536


def typed_arguments(arguments: Mapping[str, Any], schema: object) -> dict[str, Any]:
    """Return arguments with texts as the values that a JSON schema of all of them asks for.

    A text is read as JSON, or as Python writes it (`True`, `['a']`). It stays a text if the schema
    takes one or does not say, and if it is neither.
    """
    properties = schema.get("properties") if isinstance(schema, dict) else None
    known = properties if isinstance(properties, dict) else {}
    return {
        name: _parsed(value)
        if isinstance(value, str) and name in known and not _takes_text(known[name])
        else value
        for name, value in arguments.items()
    }


def _takes_text(schema: object) -> bool:
    if not isinstance(schema, dict):
        return True
    if (kind := schema.get("type")) is not None:
        return "string" in (kind if isinstance(kind, list) else [kind])
    for name in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(name), list):
            return any(isinstance(c, dict) and _takes_text(c) for c in choices)
    values = schema.get("enum")
    return not isinstance(values, list) or any(isinstance(value, str) for value in values)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _parsed_python(text)


def _parsed_python(text: str) -> Any:
    if len(text) > _MAX_PYTHON_CHARACTERS:
        return text
    try:
        value = ast.literal_eval(text.strip())
        json.dumps(value)  # a set or bytes raise TypeError
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return text
    return value if is_shallow(value) else text
