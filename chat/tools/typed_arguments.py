"""Arguments of calls with the types that a tool asks for: in many formats everything is text."""

import ast
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from swiftchat.chat.history.tool_call import is_shallow, well_formed

_MAX_PYTHON_CHARACTERS = 65_536
_MAX_ALTERNATIVES = 64
_MAX_DEPTH = 16  # of references and choices inside each other
_KINDS = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer"}

Schema = Mapping[str, Any]


def typed_arguments(arguments: Mapping[str, Any], schema: object) -> dict[str, Any]:
    """Return arguments in which texts are the values that a JSON schema of all of them asks for.

    So at every depth. A text is read as JSON, or as Python writes it (`True`, `['a']`). It stays a
    text if the schema takes one or does not say, and if it is no value of the schema's types.
    """
    root = schema if isinstance(schema, dict) else {}
    typed: dict[str, Any] = _typed_parts(arguments, root, root)
    return typed


def takes_text(name: str, schema: object) -> bool:
    """Return whether a schema of all arguments takes a text for one of them, or does not say."""
    root = schema if isinstance(schema, dict) else {}
    return any("string" in _kinds(one) for one in _alternatives(_part(name, root), root))


def _typed(value: Any, schema: object, root: Schema) -> Any:
    alternatives = list(_alternatives(schema, root))
    readings = [value]
    if isinstance(value, str):
        if any("string" in _kinds(one) for one in alternatives):
            return value
        readings = list(_readings(value))
    for reading in readings:
        for one in alternatives:
            if _has_kind(reading, _kinds(one)):
                return _typed_parts(_as_integer(reading, _kinds(one)), one, root)
    return value


def _typed_parts(value: Any, schema: Schema, root: Schema) -> Any:
    """Return an object or a list with the typed values of its parts."""
    if isinstance(value, Mapping):
        return {name: _typed(part, _part(name, schema), root) for name, part in value.items()}
    if isinstance(value, list):
        first = schema.get("prefixItems")
        schemas = first if isinstance(first, list) else []
        rest = schema.get("items")
        return [
            _typed(part, schemas[i] if i < len(schemas) else rest, root)
            for i, part in enumerate(value)
        ]
    return value


def _part(name: str, schema: Schema) -> object:
    """Return the schema of a part of an object."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    return known.get(name, schema.get("additionalProperties"))


def _alternatives(schema: object, root: object) -> Iterator[Schema]:
    """Yield the schemas of which a value matches one: without references and choices."""
    return islice(_resolved(schema, root, _MAX_DEPTH), _MAX_ALTERNATIVES)


def _resolved(schema: object, root: object, depth: int) -> Iterator[Schema]:
    if not isinstance(schema, dict) or not depth:
        yield {}
        return
    rest = {name: value for name, value in schema.items() if name not in _COMBINED}
    if isinstance(reference := schema.get("$ref"), str):
        for one in _resolved(_referenced(reference, root), root, depth - 1):
            yield {**one, **rest}
        return
    for name in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(name), list) and choices:
            for choice in choices:
                for one in _resolved(choice, root, depth - 1):
                    yield {**rest, **one}
            return
    for part in parts if isinstance(parts := schema.get("allOf"), list) else ():
        rest |= next(_resolved(part, root, depth - 1))
    yield rest


_COMBINED = {"$ref", "anyOf", "oneOf", "allOf"}


def _referenced(reference: str, root: object) -> object:
    """Return the schema at a JSON pointer such as `#/$defs/Point`; None if there is none."""
    found = root
    for step in reference.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, dict) else None
    return found if reference.startswith("#") else None


def _kinds(schema: Schema) -> set[str]:
    """Return the types that a schema takes; those of text too if it does not say."""
    if (kind := schema.get("type")) is not None:
        kinds = set(
            filter(lambda one: isinstance(one, str), kind if type(kind) is list else [kind])
        )
        return kinds | ({"integer"} if "number" in kinds else set())
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return set(map(_kind, values))
    if "properties" in schema:
        return {"object"}
    return {"array"} if "items" in schema or "prefixItems" in schema else _ANY


_ANY = {*_KINDS.values(), "number", "null"}


def _kind(value: object) -> str:
    return "null" if value is None else _KINDS.get(type(value), "number")


def _has_kind(value: object, kinds: set[str]) -> bool:
    return _kind(value) in kinds or _as_integer(value, kinds) is not value


def _as_integer(value: Any, kinds: set[str]) -> Any:
    """Return an integer for a whole number such as 7.0 where only integers are taken."""
    is_whole = isinstance(value, float) and value.is_integer()
    return int(value) if is_whole and "integer" in kinds and "number" not in kinds else value


def _readings(text: str) -> Iterator[Any]:
    """Yield what a text may mean, as JSON and as Python."""
    try:
        value = json.loads(text)
        yield from (well_formed(one) for one in [value] if is_shallow(one))
    except (ValueError, RecursionError):
        pass
    if len(text) > _MAX_PYTHON_CHARACTERS:
        return
    try:
        value = ast.literal_eval(text.strip())
        json.dumps(value)  # a set or bytes raise TypeError
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return
    yield from (well_formed(one) for one in [value] if is_shallow(one))
