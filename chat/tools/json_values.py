"""The JSON values in the text of tool calls."""

import json
import re
from typing import Any

_DOUBLED = re.compile(r"\{\s*(?=\{)")
_SEPARATORS = " \t\r\n;,"


def json_entries(text: str) -> list[Any]:
    """Return the JSON values in a text, those of a list instead of it."""
    values = json_values(text)
    return [entry for v in values for entry in (v if isinstance(v, list) else [v])]


def json_values(text: str) -> list[Any]:
    """Return the JSON values in a text, [] if there is anything else in it.

    An object may have two braces at each end: so does the example in some chat templates.
    """
    decoder = json.JSONDecoder(strict=False)  # models write line ends inside strings
    values, at = [], 0
    try:
        while (at := after_separators(text, at)) < len(text):
            is_doubled = _DOUBLED.match(text, at)
            value, at = decoder.raw_decode(text, is_doubled.end() if is_doubled else at)
            if is_doubled:
                at = after_separators(text, at)
                if text[at : at + 1] != "}":
                    return []
                at += 1
            values.append(value)
    except (ValueError, RecursionError):
        return []
    return values


def after_separators(text: str, at: int) -> int:
    """Return the position after blanks and separators."""
    while at < len(text) and text[at] in _SEPARATORS:
        at += 1
    return at
