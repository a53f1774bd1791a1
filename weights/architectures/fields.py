"""Fields of a parsed `config.json`, each checked before it is believed.

Everything here raises `BadModelFile` naming the field, what it must be and what was found.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile

Fields = Mapping[str, Any]


def bad(name: str, wanted: str, found: object) -> BadModelFile:
    """The error for the field `name`; whatever was found is shown in at most 80 characters."""
    if found is None:
        return BadModelFile(f"config.json: {name} is missing; it must be {wanted}")
    if isinstance(found, int) and found.bit_length() > 64:
        shown = "a huge number"
    else:
        plain = isinstance(found, bool | int | float | str)
        shown = repr(found) if plain else type(found).__name__
    shown = shown if len(shown) <= 80 else shown[:79] + "…"
    return BadModelFile(f"config.json: {name} must be {wanted}, not {shown}")


def mapping(config: Fields, name: str) -> Fields | None:
    """An object, or None where the field is absent."""
    value = config.get(name)
    if value is None or isinstance(value, Mapping):
        return value
    raise bad(name, "an object", value)


def flag(config: Fields, name: str) -> bool:
    """True or false; absent is false."""
    value = config.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise bad(name, "true or false", value)


def integer(config: Fields, name: str, low: int, high: int) -> int:
    """An integer from `low` to `high`."""
    value = config.get(name)
    # A bool is an int in Python, and never a size.
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise bad(name, f"an integer from {low} to {high}", value)
    return value


def optional_integer(config: Fields, name: str, low: int, high: int) -> int | None:
    """As `integer`, or None where the field is absent."""
    return None if config.get(name) is None else integer(config, name, low, high)


def number(
    config: Fields, name: str, *, above: float, below: float, default: float | None = None
) -> float:
    """A number strictly between `above` and `below`; `default` where the field is absent."""
    value = config.get(name, default)
    valid = isinstance(value, int | float) and not isinstance(value, bool)
    # NaN compares false with everything, so it does not pass either.
    if not valid or not above < value < below:
        raise bad(name, f"a number above {above:g} and below {below:g}", value)
    return float(value)


def optional_number(config: Fields, name: str, *, above: float, below: float) -> float | None:
    """As `number`, or None where the field is absent."""
    return None if config.get(name) is None else number(config, name, above=above, below=below)


def numbers(config: Fields, name: str, count: int) -> tuple[float, ...]:
    """A list of `count` numbers above 0 and below 10^6."""
    value = config.get(name)
    if not isinstance(value, list) or len(value) != count:
        raise bad(name, f"a list of {count} numbers", value)
    return tuple(number({name: item}, name, above=0.0, below=1e6) for item in value)
