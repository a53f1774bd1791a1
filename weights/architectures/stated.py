"""What a model's configuration states, in a form that later versions read the same way."""

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any


def stated(part: Any) -> Any:
    """Return a part, or a value of one, as values of JSON: what the model sets, by name.

    A part is its class and those of its fields that differ from their defaults. So a field that a
    later version adds changes nothing for models that do not set it. Raises `TypeError` for a value
    that is neither a part nor a plain value.
    """
    if is_dataclass(part):
        values = ((field, getattr(part, field.name)) for field in fields(part))
        set_fields = {
            field.name: stated(value) for field, value in values if not _is_default(field, value)
        }
        return {"part": type(part).__name__, **set_fields}
    if isinstance(part, tuple):
        return [stated(value) for value in part]
    if part is None or isinstance(part, str | int | float):
        return part
    raise TypeError(f"a configuration has the value {part!r}")


def _is_default(field: Field[Any], value: Any) -> bool:
    if field.default_factory is not MISSING:
        return bool(value == field.default_factory())
    return field.default is not MISSING and bool(value == field.default)
