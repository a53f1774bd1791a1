"""Checks on the fields of `tokenizer.json`."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Never

import regex

from swiftchat.errors import BadModelFile

MAX_IDS = 1 << 24
_MAX_PATTERN_CHARACTERS = 1 << 12
_MAX_STEPS = 64
# Bound on the repeat counts of a pattern, multiplied in an alternative; published ones reach 1,033.
_MAX_REPEATS = 1 << 11
# An escaped character or a set, which may have a ^ in it, or a ^ outside.
_BEGINS = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|\^", re.DOTALL)
# An escaped character, a set, or what divides a pattern.
_TOKENS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]", re.DOTALL)


def reject(field: str, problem: str) -> Never:
    """Raise `BadModelFile` about `field`."""
    raise BadModelFile(f"tokenizer.json: {field} {problem}")


def reject_kind(field: str, kind: object) -> Never:
    """Raise `BadModelFile` about a valid value that is not supported."""
    raise BadModelFile(
        f"tokenizer.json: {field} {short(kind)} is not supported yet",
        "supported: byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM2), SentencePiece BPE "
        "(Llama 2, Mistral, Gemma, Phi 3) and Unigram (T5)",
    )


def short(value: object) -> str:
    """Return `value` quoted for a message, or the name of its type if it could be long."""
    return repr(value if isinstance(value, str | int | float | None) else type(value).__name__)[:60]


def flag(spec: Mapping[str, Any], name: str, field: str, default: bool = False) -> bool:
    """Return the boolean `name` of `spec`, the object at `field`."""
    value = spec.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        reject(f"{field}.{name}", f"is {short(value)}, not true or false")
    return value


def text(
    spec: Mapping[str, Any], name: str, field: str, max_characters: int = _MAX_PATTERN_CHARACTERS
) -> str:
    """Return the string `name` of `spec`, the object at `field`."""
    value = spec.get(name)
    if not isinstance(value, str) or len(value) > max_characters:
        reject(f"{field}.{name}", "is too long or not a string")
    return value


def parts(spec: Any, field: str, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the steps of `spec` with the names of their fields, `Sequence` steps flattened."""
    waiting = [(field, spec)]
    seen = 0
    while waiting:
        field, spec = waiting.pop(0)
        if spec is None:
            continue
        seen += 1
        if not isinstance(spec, dict) or seen > _MAX_STEPS:
            reject(field, "is not an object, or there are too many steps")
        if spec.get("type") != "Sequence":
            yield field, spec
            continue
        inner = spec.get(key)
        if not isinstance(inner, list):
            reject(f"{field}.{key}", "is missing or not a list")
        waiting[:0] = [(f"{field}.{key}[{i}]", part) for i, part in enumerate(inner)]


def compiled(spec: Mapping[str, Any], field: str) -> Any:
    """Return the compiled `pattern` of `spec`, a Regex or a literal String."""
    pattern = spec.get("pattern")
    if not isinstance(pattern, dict) or pattern.keys() not in ({"Regex"}, {"String"}):
        reject(f"{field}.pattern", "is neither a Regex nor a String")
    ((kind, source),) = pattern.items()
    if not isinstance(source, str) or not source or len(source) > _MAX_PATTERN_CHARACTERS:
        reject(f"{field}.pattern", "is empty, too long or not a string")
    literal = kind == "String"
    if not literal and _needs_much_memory(source):
        reject(f"{field}.pattern", "repeats too often or is recursive")
    try:
        # As in Oniguruma, whose syntax these patterns use, ^ and $ match at line ends.
        return regex.compile(regex.escape(source) if literal else _begins(source), regex.MULTILINE)
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        reject(f"{field}.pattern", f"does not compile: {str(error)[:100]}")


def _begins(source: str) -> str:
    """Return a pattern in which ^ does not match after a line end that ends the text."""
    return _BEGINS.sub(lambda found: r"(?:\A|^(?!\Z))" if found[0] == "^" else found[0], source)


def _needs_much_memory(pattern: str) -> bool:
    """Return whether matching could exhaust the memory within the time limit."""
    # Recursive calls in the syntax of `regex`; Oniguruma's differ.
    is_recursive = re.search(r"\(\?(?:R|&|P>|[-+]?\d)", pattern) is not None
    return is_recursive or sum(map(_repeats, _alternatives(pattern))) > _MAX_REPEATS


def _repeats(pattern: str) -> int:
    """Return the product of the counts in a pattern, an upper bound if they are nested."""
    counts = (max(int(count), 1) for count in re.findall(r"\{(?:\d*,)?(\d{1,9})", pattern))
    return math.prod(counts)


def _alternatives(pattern: str) -> Iterator[str]:
    """Yield the alternatives of a pattern that are not in a group."""
    depth = start = 0
    for token in _TOKENS.finditer(pattern):
        if token[0] == "(":
            depth += 1
        elif token[0] == ")":
            depth = max(0, depth - 1)
        elif token[0] == "|" and depth == 0:
            yield pattern[start : token.start()]
            start = token.end()
    yield pattern[start:]
