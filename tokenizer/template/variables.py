"""The variables of a rendering, and which of their texts count as the template's."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from swiftchat.tokenizer.template.own_text import OwnText, Ranges, own, own_ranges

Place = tuple[Sequence[str | int], Ranges]

# Templates build control tokens from the values of these fields, as in
# `'<|' + message.role + '|>'`, and from variables such as `reasoning_effort`.
_NAMING_FIELDS = frozenset({"role", "type"})
_CONTENT_VARIABLES = frozenset({"messages", "tools", "documents"})
# The values that they are meant to be built from.
_KNOWN_WORDS = frozenset(
    {
        "assistant",
        "audio",
        "developer",
        "function",
        "image",
        "image_url",
        "ipython",
        "model",
        "observation",
        "system",
        "text",
        "tool",
        "user",
        "video",
    }
)


def variables_with_own(
    inputs: Mapping[str, Any], own_variables: Mapping[str, Any], words: Collection[str]
) -> dict[str, Any]:
    """Return all variables; texts of `own_variables`, and names in `words`, are the template's.

    An `OwnText` of the caller, which no text from outside can be, stays one.
    Raises `TypeError` for a value that is not of a JSON type.
    """
    found = _copied(inputs, lambda text: own(text) if text in words else text)
    # `tools` and `documents` are always defined, as in `transformers`.
    return {"tools": None, "documents": None, **own(own_variables), **found}


def own_places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[Place]:
    """Yield the keys and indices that lead to each `OwnText` in JSON values, and its ranges."""
    if isinstance(value, OwnText):
        yield path, own_ranges(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from own_places(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from own_places(item, (*path, index))


def restore_own_places(inputs: dict[str, Any], places: Iterable[Place]) -> None:
    """Replace the texts at these places of `inputs`, which were sent as JSON, by `OwnText`."""
    for (*path, last), ranges in places:
        parent: Any = inputs
        for step in path:
            parent = parent[step]
        parent[last] = OwnText(parent[last], [(low, high) for low, high in ranges])


def harmless_words(inputs: Mapping[str, Any], special_tokens: Iterable[str]) -> list[str]:
    """Return the texts in naming fields that may become part of a control token.

    These are known words, and texts that no control token could be assembled from.
    """
    words: set[str] = set()

    def collect(text: str) -> str:
        words.add(text)
        return text

    _copied(inputs, collect)
    unknown = words - _KNOWN_WORDS
    if not unknown:
        return sorted(words)
    could_be_control = _ControlTokenParts(special_tokens)
    return sorted(words - {text for text in unknown if could_be_control(text)})


def _copied(inputs: Mapping[str, Any], change_name: Callable[[str], str]) -> dict[str, Any]:
    """Copy variables of JSON types, with `change_name` applied to the texts of naming fields."""

    def copy(value: Any, is_name: bool) -> Any:
        if isinstance(value, OwnText):
            return value
        if isinstance(value, str):
            text = str.__str__(value)
            return change_name(text) if is_name else text
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            return {str(key): copy(item, key in _NAMING_FIELDS) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [copy(item, is_name) for item in value]
        raise TypeError(f"a template variable cannot be a {type(value).__name__}")

    return {name: copy(value, name not in _CONTENT_VARIABLES) for name, value in inputs.items()}


class _ControlTokenParts:
    """Tells whether a text has a control token in it, or could be a part of one."""

    def __init__(self, special_tokens: Iterable[str]) -> None:
        self._specials = list(filter(None, special_tokens))
        self._whole = re.compile("|".join(map(re.escape, self._specials)) or r"(?!)")
        cuts = [(special, cut) for special in self._specials for cut in range(1, len(special))]
        self._heads = tuple({special[cut:] for special, cut in cuts})
        self._tails = tuple({special[:cut] for special, cut in cuts})

    def __call__(self, text: str) -> bool:
        body = text.strip()  # a template may strip it
        return bool(body) and (
            self._whole.search(text) is not None
            or any(body in special for special in self._specials)
            or body.startswith(self._heads)
            or body.endswith(self._tails)
        )
