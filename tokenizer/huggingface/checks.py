"""What all readers of `tokenizer.json` check with."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Never

import regex

from swiftchat.errors import BadModelFile

__all__ = ["MOST_IDS", "compiled", "flag", "parts", "refuse", "refuse_kind", "short", "text"]

MOST_IDS = 1 << 24
_LONGEST_PATTERN = 1 << 12
_MOST_STEPS = 64
# All counts of a pattern multiplied; those of real ones make 12.
_MOST_REPEATS = 1 << 10


def refuse(field: str, what: str) -> Never:
    """Raise `BadModelFile` about `field`."""
    raise BadModelFile(f"tokenizer.json: {field} {what}")


def refuse_kind(field: str, kind: object) -> Never:
    """Raise `BadModelFile` about something sound that is not supported."""
    raise BadModelFile(
        f"tokenizer.json: {field} {short(kind)} is not supported yet",
        "supported: byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM2), SentencePiece BPE "
        "(Llama 2, Mistral, Gemma, Phi 3) and Unigram (T5)",
    )


def short(value: object) -> str:
    """`value` in quotes, or its type where it could be long."""
    return repr(value if isinstance(value, str | int | float | None) else type(value).__name__)[:60]


def flag(spec: Mapping[str, Any], name: str, field: str, default: bool = False) -> bool:
    """The truth value `name` of `spec`, which is the object at `field`."""
    value = spec.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        refuse(f"{field}.{name}", f"is {short(value)}, not true or false")
    return value


def text(spec: Mapping[str, Any], name: str, field: str, most: int = _LONGEST_PATTERN) -> str:
    """The text `name` of `spec`, which is the object at `field`."""
    value = spec.get(name)
    if not isinstance(value, str) or len(value) > most:
        refuse(f"{field}.{name}", "is absurdly long or no string")
    return value


def parts(spec: Any, field: str, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The steps of `spec` with the names of their fields, Sequences taken apart."""
    waiting = [(field, spec)]
    seen = 0
    while waiting:
        field, spec = waiting.pop(0)
        if spec is None:
            continue
        seen += 1
        if not isinstance(spec, dict) or seen > _MOST_STEPS:
            refuse(field, "is no object, or one of too many steps")
        if spec.get("type") != "Sequence":
            yield field, spec
            continue
        inner = spec.get(key)
        if not isinstance(inner, list):
            refuse(f"{field}.{key}", "is missing or no list")
        waiting[:0] = [(f"{field}.{key}[{i}]", part) for i, part in enumerate(inner)]


def compiled(spec: Mapping[str, Any], field: str) -> Any:
    """The compiled `pattern` of `spec`: a Regex, or a String that stands for itself."""
    pattern = spec.get("pattern")
    if not isinstance(pattern, dict) or pattern.keys() not in ({"Regex"}, {"String"}):
        refuse(f"{field}.pattern", "is neither a Regex nor a String")
    ((form, source),) = pattern.items()
    if not isinstance(source, str) or not source or len(source) > _LONGEST_PATTERN:
        refuse(f"{field}.pattern", "is empty, absurdly long or no string")
    literal = form == "String"
    if not literal and _needs_much_memory(source):
        refuse(f"{field}.pattern", "repeats absurdly often or calls itself")
    try:
        # Oniguruma, whose dialect it is, takes ^ and $ for those of a line.
        return regex.compile(regex.escape(source) if literal else source, regex.MULTILINE)
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        refuse(f"{field}.pattern", f"does not compile: {str(error)[:100]}")


def _needs_much_memory(pattern: str) -> bool:
    """Whether matching could fill the memory before its time is over."""
    counts = (max(int(count), 1) for count in re.findall(r"\{(?:\d*,)?(\d{1,9})", pattern))
    # Only `regex` knows these calls; Oniguruma, whose dialect it is, has others.
    return (
        math.prod(counts) > _MOST_REPEATS
        or re.search(r"\(\?(?:R|&|P>|[-+]?\d)", pattern) is not None
    )
