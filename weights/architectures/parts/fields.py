"""Checked reads of the fields of a parsed `config.json`.

Every function raises `BadModelFile` with the field's name, the expected value and the found one.
"""

from collections.abc import Collection, Mapping
from typing import Any

from swiftchat.errors import BadModelFile

Fields = Mapping[str, Any]

# Above every published model, and small enough that no size derived from the config exhausts
# memory before a tensor is read.
MAX_LAYERS = 2048
MAX_HEADS = 4096
MAX_HEAD_DIM = 4096
MAX_WIDTH = 2**20
MAX_VOCAB = 2**24
MAX_CONTEXT = 2**30
MAX_EXPERTS = 2**16  # in all layers together


def invalid(name: str, expected: str, found: object) -> BadModelFile:
    """Return the error for the field `name`; it shows at most 80 characters of `found`."""
    if found is None:
        return BadModelFile(f"config.json: {name} is missing; it must be {expected}")
    if isinstance(found, int) and found.bit_length() > 64:
        shown = "a huge number"
    else:
        scalar = isinstance(found, bool | int | float | str)
        shown = repr(found) if scalar else type(found).__name__
    shown = shown if len(shown) <= 80 else shown[:79] + "…"
    return BadModelFile(f"config.json: {name} must be {expected}, not {shown}")


def mapping(config: Fields, name: str) -> Fields | None:
    """Read an object; None if absent."""
    value = config.get(name)
    if value is None or isinstance(value, Mapping):
        return value
    raise invalid(name, "an object", value)


def flag(config: Fields, name: str) -> bool:
    """Read a boolean; False if absent."""
    value = config.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise invalid(name, "true or false", value)


def integer(config: Fields, name: str, low: int, high: int) -> int:
    """Read an integer from `low` to `high`, both included."""
    value = config.get(name)
    # bool is a subclass of int.
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise invalid(name, f"an integer from {low} to {high}", value)
    return value


def optional_integer(config: Fields, name: str, low: int, high: int) -> int | None:
    """Read an integer as `integer` does; None if absent."""
    return None if config.get(name) is None else integer(config, name, low, high)


def number(
    config: Fields, name: str, *, above: float, below: float, default: float | None = None
) -> float:
    """Read a number strictly between `above` and `below`; `default` if absent."""
    value = config.get(name, default)
    valid = isinstance(value, int | float) and not isinstance(value, bool)
    # NaN compares false with everything and therefore fails too.
    if not valid or not above < value < below:
        raise invalid(name, f"a number above {above:g} and below {below:g}", value)
    return float(value)


def optional_number(config: Fields, name: str, *, above: float, below: float) -> float | None:
    """Read a number as `number` does; None if absent."""
    return None if config.get(name) is None else number(config, name, above=above, below=below)


def number_list(config: Fields, name: str, count: int) -> tuple[float, ...]:
    """Read a list of `count` numbers above 0 and below 10^6."""
    value = config.get(name)
    if not isinstance(value, list) or len(value) != count:
        raise invalid(name, f"a list of {count} numbers", value)
    return tuple(number({name: item}, name, above=0.0, below=1e6) for item in value)


def num_layers(config: Fields) -> int:
    """Read `num_hidden_layers`."""
    return integer(config, "num_hidden_layers", 1, MAX_LAYERS)


def num_heads(config: Fields) -> int:
    """Read `num_attention_heads`."""
    return integer(config, "num_attention_heads", 1, MAX_HEADS)


def hidden_size(config: Fields) -> int:
    """Read `hidden_size`."""
    return integer(config, "hidden_size", 1, MAX_WIDTH)


def layer_types(config: Fields) -> list[str] | None:
    """Return the names in `layer_types`, None without it."""
    found = config.get("layer_types")
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(kind, str) for kind in found):
        raise invalid("layer_types", f"a list of {num_layers(config)} names", found)
    return found


def without_keys(config: Fields, names: Collection[str]) -> Fields:
    """Return `config` without these keys, also in its parameters of rotary embeddings."""
    if not names:
        return config
    kept = {name: value for name, value in config.items() if name not in names}
    for field in ("rope_parameters", "rope_scaling"):
        rope = mapping(kept, field)
        if rope:
            kept[field] = {name: value for name, value in rope.items() if name not in names}
    return kept
