"""The fields of conversations from files that others may have written, checked one by one.

Each function returns a value of the right type for any JSON or SQLite value.
"""

import json
import math
from typing import Any

_MAX_COUNT = 1 << 53
_MAX_SETTING = 1 << 64  # seeds are smaller
_MAX_TIME_S = 1e11


def text_of(value: object) -> str | None:
    return value if isinstance(value, str) else None


def time_of(value: object) -> float | None:
    """Return seconds, None unless they are between 0 and the year 5138."""
    if not isinstance(value, int | float) or not 0 <= value < _MAX_TIME_S:  # excludes NaN
        return None
    return float(value)


def count_of(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < _MAX_COUNT else None


def settings_of(value: object) -> dict[str, Any]:
    """Return the options in a dictionary: texts, finite numbers, and lists of them."""
    if not isinstance(value, dict):
        return {}
    return {str(key): item for key, item in value.items() if _is_setting(item)}


def json_of(text: object) -> object:
    """Parse JSON; return None for what is not JSON."""
    if not isinstance(text, str):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_setting(value: object) -> bool:
    match value:
        case str():
            return True
        case int():
            return abs(value) < _MAX_SETTING
        case float():
            return math.isfinite(value)
        case list():
            return all(isinstance(item, str | int | float) and _is_setting(item) for item in value)
    return False
