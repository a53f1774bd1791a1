"""Checked access to the settings of a quantized checkpoint; unknown fields raise an error."""

from collections.abc import Collection, Mapping
from typing import Any

from swiftchat.errors import BadModelFile

_MAX_SHOWN = 80


class Settings:
    """A JSON object whose fields are checked on access; `place` names it in error messages.

    Every failed check raises `BadModelFile` with the field, the expected and the found value.
    """

    def __init__(self, fields: Mapping[str, Any], place: str) -> None:
        self.fields = fields
        self.place = place

    def text(self, name: str, allowed: Collection[str], default: str | None = None) -> str:
        """Return a string out of `allowed`, in lower case."""
        value = self.fields.get(name)
        value = default if value is None else value
        if not isinstance(value, str) or value.lower() not in allowed:
            raise self.error(name, f"one of {', '.join(allowed)}", value)
        return value.lower()

    def integer(
        self, name: str, allowed: Collection[int], expected: str, default: int | None = None
    ) -> int:
        """Return an integer out of `allowed`, which `expected` describes for error messages."""
        value = self.fields.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
            raise self.error(name, expected, value)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean; absent and null mean `default`."""
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, "true or false", value)
        return value

    def two_sizes(self, name: str, most: int, parsed: object = None) -> tuple[int, int]:
        """Return a list of two integers from 1 to `most`; `parsed` replaces the field's value."""
        value = self.fields.get(name) if parsed is None else parsed
        if (
            not isinstance(value, list)
            or len(value) != 2
            or not all(type(size) is int and 0 < size <= most for size in value)
        ):
            raise self.error(name, "two sizes", self.fields.get(name))
        return value[0], value[1]

    def nested(self, name: str) -> "Settings":
        """Return the object under `name`; absent and null mean an empty object."""
        value = self.fields.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.error(name, "an object", value)
        return Settings(value, f"{self.place}.{shorten(name)}")

    def reject_unknown(self, known: Collection[str]) -> None:
        """Raise for the first field that is set and not in `known`.

        Null, false, and empty strings, lists and objects count as not set.
        """
        for name, value in self.fields.items():
            if name not in known and value not in (None, False, "", [], {}):
                raise BadModelFile(
                    f"{self.place}: the field {shorten(name)} is unknown; "
                    "it may change the meaning of the weights"
                )

    def error(self, name: str, expected: str, found: object) -> BadModelFile:
        """Return the error for the field `name`."""
        if found is None:
            return BadModelFile(f"{self.place}: {name} is missing; it must be {expected}")
        plain = isinstance(found, bool | float | str)
        small = isinstance(found, int) and abs(found) < 2**64
        shown = shorten(repr(found)) if plain or small else type(found).__name__
        return BadModelFile(f"{self.place}: {name} must be {expected}, not {shown}")


def shorten(text: str) -> str:
    """Cut a text from a file to at most 80 characters for an error message."""
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
