"""The settings of a quantized checkpoint: each one read is checked, each unknown one refused."""

from collections.abc import Collection, Mapping
from typing import Any

from swiftchat.errors import BadModelFile

__all__ = ["Settings"]

_MAX_SHOWN = 80


class Settings:
    """A JSON object named `place` in messages, whose fields are believed only when checked.

    Every failed check raises `BadModelFile` naming the field, what was expected and found.
    """

    def __init__(self, fields: Mapping[str, Any], place: str) -> None:
        self.fields = fields
        self.place = place

    def text(self, name: str, allowed: Collection[str], default: str | None = None) -> str:
        """A string out of `allowed`, in lower case."""
        value = self.fields.get(name)
        value = default if value is None else value
        if not isinstance(value, str) or value.lower() not in allowed:
            raise self.bad(name, f"one of {', '.join(allowed)}", value)
        return value.lower()

    def integer(
        self, name: str, allowed: Collection[int], wanted: str, default: int | None = None
    ) -> int:
        """An integer out of `allowed`, which messages describe as `wanted`."""
        value = self.fields.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
            raise self.bad(name, wanted, value)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false; absent and null mean `default`."""
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(name, "true or false", value)
        return value

    def nested(self, name: str) -> "Settings":
        """The object under `name`; absent and null are an empty one."""
        value = self.fields.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.bad(name, "an object", value)
        return Settings(value, f"{self.place}.{shortened(name)}")

    def refuse_others(self, known: Collection[str]) -> None:
        """Refuse the first field that is set and not among `known`.

        Null, false, and empty strings, lists and objects count as not set.
        """
        for name, value in self.fields.items():
            if name not in known and value not in (None, False, "", [], {}):
                raise BadModelFile(
                    f"{self.place}: the field {shortened(name)} is unknown; "
                    "it may change what the weights mean"
                )

    def bad(self, name: str, wanted: str, found: object) -> BadModelFile:
        """The error for the field `name`."""
        if found is None:
            return BadModelFile(f"{self.place}: {name} is missing; it must be {wanted}")
        plain = isinstance(found, bool | float | str)
        small = isinstance(found, int) and abs(found) < 2**64
        shown = shortened(repr(found)) if plain or small else type(found).__name__
        return BadModelFile(f"{self.place}: {name} must be {wanted}, not {shown}")


def shortened(text: str) -> str:
    """At most 80 characters of a text out of a file, for a message."""
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
