"""Checked reads of the fields of a parsed `config.json`.

Every function raises `BadModelFile` with the field's name, the expected value and the found one.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
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

DTYPES = ("bfloat16", "float16", "float32")
# Other names, and dtypes of weights that the activations cannot have.
_DTYPE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "half": "float16",
        "float": "float32",
        "double": "float32",
        "float64": "float32",
        "auto": "bfloat16",
        "float8_e4m3fn": "bfloat16",
        "float8_e5m2": "bfloat16",
    }
)


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


def token_ids(config: Fields, name: str, vocab_size: int) -> tuple[int, ...]:
    """Read the field `name` as token ids: absent, one id, or a list of at most 256.

    Some files have -1 for a token that the model lacks.
    """
    value = config.get(name)
    if value is None:
        return ()
    values = value if isinstance(value, list) else [value]
    if len(values) > 256:
        raise invalid(name, "at most 256 token ids", f"a list of {len(values)}")
    present = [item for item in values if item != -1]
    return tuple(integer({name: item}, name, 0, vocab_size - 1) for item in present)


def dtype(config: Fields) -> str:
    """Return the dtype of the saved weights; float32 if absent."""
    name = "dtype" if config.get("dtype") is not None else "torch_dtype"
    value = config.get(name)
    if value is None:
        return "float32"
    if isinstance(value, str):
        value = value.removeprefix("torch.")
        value = _DTYPE_NAMES.get(value, value)
    if value not in DTYPES:
        raise invalid(name, f"one of {', '.join(DTYPES)}", value)
    return str(value)


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
