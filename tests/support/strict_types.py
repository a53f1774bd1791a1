"""Objects of an API against the types of its client's package, without fields that they lack."""

import functools
import json
from typing import Any

from pydantic import BaseModel, TypeAdapter


def strict(kind: Any, value: Any) -> Any:
    """Return the value as an instance of a type of the package, which has all of its fields."""
    found = _adapter(kind).validate_json(json.dumps(value), strict=True)
    unknown = list(_unknown(found))
    assert unknown == [], unknown
    return found


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the checker of a type: of a union of all events it takes a second to make."""
    return TypeAdapter(kind)


def _unknown(value: Any) -> Any:
    """Yield the names of fields that the types do not have, with the types."""
    match value:
        case BaseModel():
            for name in value.model_extra or {}:
                yield f"{type(value).__name__}.{name}"
            for name in type(value).model_fields:
                yield from _unknown(getattr(value, name))
        case dict():
            for part in value.values():
                yield from _unknown(part)
        case list():
            for part in value:
                yield from _unknown(part)
