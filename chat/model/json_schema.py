"""JSON schemas as answers are held to them: what cannot reject anything left out, then bounded.

`simplified` keeps the meaning of a schema. `bounded` narrows it to what its author means: an
object with declared properties has those only, unless the schema says otherwise, and a number
does not go on without an end.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

# Keywords of JSON Schema whose values are schemas, lists of schemas, or schemas by name.
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
_LISTS = ("prefixItems", "anyOf", "allOf", "oneOf", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
# Keywords whose schemas hold for the same value as the schema that they are in.
_IN_PLACE = ("allOf", "anyOf", "oneOf")
_UNFOLLOWED = ("not", "if", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef")
_NEVER_BOUNDED = (*_IN_PLACE, *_UNFOLLOWED, "$ref", "enum", "const")

_YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = (
    "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"  # of 4, not 100
)
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    "|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_HOUR, _MINUTE = "([01][0-9]|2[0-3])", "[0-5][0-9]"
_TIME = f"{_HOUR}:{_MINUTE}:{_MINUTE}(\\.[0-9]{{1,9}})?(Z|[+-]{_HOUR}:{_MINUTE})"
_LABEL = "[A-Za-z0-9]+(-[A-Za-z0-9]+)*"
# Formats that llguidance enforces; any other one is an annotation.
ENFORCED_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
# What is enforced besides: dates that exist, no leap seconds, names without other alphabets.
_EXACT: dict[str, dict[str, Any]] = {
    "date": {"pattern": f"^{_DATE}$"},
    "time": {"pattern": f"^{_TIME}$"},
    "date-time": {"pattern": f"^{_DATE}T{_TIME}$"},
    "hostname": {"pattern": rf"^{_LABEL}(\.{_LABEL})*$", "maxLength": 253},
}
_REPLACED_FORMATS = ("date", "time", "date-time")

_OF_TYPE = {
    "array": ("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"),
    "object": (
        *("propertyNames", "unevaluatedProperties"),
        *("dependentRequired", "dependentSchemas", "dependencies"),
    ),
}
_MAX_INTEGER = 10**18
_MAX_NUMBER = 10**15
_STEP = 1e-9  # of a number, which bounds its decimals
_LEAST_SPAN = 1e-6  # of a range whose numbers are rounded to steps
_ANY = "any value"  # the name of the definition

Names = frozenset[str] | None  # None: any


def simplified(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema of the same meaning, without the keywords that cannot reject anything.

    Numbers beside an excluded whole one differ from it by 1e-9 at least.
    """
    found = {name: _simplified(name, value) for name, value in schema.items()}
    for name in [name for name in found if _is_void(name, found)]:
        del found[name]
    return _with_exact_bounds(_with_exact_format(found))


def inner_schemas(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the schemas directly inside a schema, with the keys that lead there."""
    for name, value in schema.items():
        found: Iterable[tuple[tuple[str, ...], Any]] = ()
        if name in _SCHEMAS and isinstance(value, dict):
            found = [((name,), value)]
        elif name in _LISTS and isinstance(value, list):
            found = (((name, str(i)), inner) for i, inner in enumerate(value))
        elif name in _MAPS and isinstance(value, dict):
            found = (((name, key), inner) for key, inner in value.items())
        yield from ((keys, inner) for keys, inner in found if isinstance(inner, dict))


def _simplified(name: str, value: Any) -> Any:
    if name in _SCHEMAS and isinstance(value, dict):
        return simplified(value)
    if name in _LISTS and isinstance(value, list):
        return [simplified(inner) if isinstance(inner, dict) else inner for inner in value]
    if name in _MAPS and isinstance(value, dict):
        return {
            key: simplified(inner) if isinstance(inner, dict) else inner
            for key, inner in value.items()
        }
    return value


def _is_void(name: str, schema: Mapping[str, Any]) -> bool:
    """Return whether a keyword of a schema cannot reject any value."""
    value = schema[name]
    for of_type, keywords in _OF_TYPE.items():
        if name in keywords and of_type not in _types(schema, of_type):
            return True
    match name:
        case "uniqueItems":
            return value is False
        case "not":
            return value is False
        case "contains":
            return schema.get("minContains") == 0 and "maxContains" not in schema
        case "minContains" | "maxContains":
            is_void = "contains" not in schema
            return is_void or (name == "minContains" and value == 0 and "maxContains" not in schema)
        case "propertyNames" | "unevaluatedProperties" | "unevaluatedItems":
            return _is_true(value)
        case "dependentRequired" | "dependentSchemas" | "dependencies":
            parts = value.values() if isinstance(value, dict) else [None]
            return all(part == [] or _is_true(part) for part in parts)
        case "if":
            return all(_is_true(schema.get(branch, True)) for branch in ("then", "else"))
        case "then" | "else":
            return "if" not in schema or _is_true(value)
        case "format":
            return isinstance(value, str) and value not in ENFORCED_FORMATS
    return name in ("$dynamicAnchor", "$recursiveAnchor")  # of references that are refused


def _is_true(schema: Any) -> bool:
    return schema is True or schema == {}


def _types(schema: Mapping[str, Any], *otherwise: str) -> tuple[str, ...]:
    """Return the types that a schema names, or `otherwise` if it does not."""
    match schema.get("type"):
        case str() as name:
            return (name,)
        case [*names]:
            return tuple(name for name in names if isinstance(name, str))
    return otherwise


def _with_exact_format(schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("format")
    exact = _EXACT.get(name) if isinstance(name, str) else None
    if exact is None:
        return schema
    if name in _REPLACED_FORMATS:
        schema = {key: value for key, value in schema.items() if key != "format"}
    if not schema.keys() & exact.keys():
        return {**schema, **exact}
    others = schema.get("allOf", [])
    return {**schema, "allOf": [*others, exact]} if isinstance(others, list) else schema


def _with_exact_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose numbers do not equal bounds that they must not.

    llguidance lets a number equal an excluded whole one if the other bound is less than 1 away.
    """
    if "number" not in _types(schema, "number"):
        return schema
    found = dict(schema)
    for name, exclusive, step in (
        ("minimum", "exclusiveMinimum", _STEP),
        ("maximum", "exclusiveMaximum", -_STEP),
    ):
        excluded, other = _number(schema.get(exclusive)), _number(schema.get(name))
        if excluded is None or excluded % 1 or excluded + step == excluded:
            continue
        del found[exclusive]
        beside = excluded + step
        is_wider = other is None or (other < beside) == (step > 0)
        found[name] = beside if is_wider else other
    return found


def _number(value: object) -> float | None:
    """Return a value if it is a number; booleans are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def bounded(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema of fewer values: without undeclared properties and endless numbers.

    An object that declares `properties` has those only, together with those of the schemas that
    hold for the same value, unless `additionalProperties` says what else it may have. Numbers
    have at most 18 digits, or 15 and 9 decimals, unless their bounds ask for more.
    """
    return _Bounding(schema).whole()


class _Bounding:
    """The bounding of one schema. A definition is copied where its context allows more names."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._copies: dict[tuple[str, Names], str] = {}
        self._definitions: dict[str, Any] = {}
        self._names_of: dict[str, Names] = {}

    def whole(self) -> dict[str, Any]:
        found: dict[str, Any] = self._bounded(dict(self._root), frozenset())
        anything = {"items": _ref(_ANY), "additionalProperties": _ref(_ANY)}
        own = {_ANY: {**_number_bounds({}), **anything}, **self._definitions}
        return {**found, "$defs": {**found.get("$defs", {}), **own}}

    def _bounded(self, schema: Any, others: Names) -> Any:
        """Return a bounded schema; `others` are the names that its context declares."""
        if not isinstance(schema, dict):
            return schema
        found = {name: self._inner(name, value) for name, value in schema.items()}
        groups = self._groups(schema)
        for key, group in groups.items():
            rest = [_own_names(schema), others]
            rest += [self._joined(parts) for name, parts in groups.items() if name != key]
            found[key] = self._in_place(key, group, _union(rest))
        if (names := self._only_names(schema, others)) is not None:
            more = sorted(names - found["properties"].keys())
            found["properties"] = {**found["properties"], **dict.fromkeys(more, True)}
            found["additionalProperties"] = False
        if not any(name in schema for name in _NEVER_BOUNDED):
            found |= _number_bounds(schema)
            if others == frozenset():
                if "array" in _types(schema, "array"):
                    found.setdefault("items", _ref(_ANY))
                if "object" in _types(schema, "object"):
                    found.setdefault("additionalProperties", _ref(_ANY))
        return found

    def _only_names(self, schema: Mapping[str, Any], others: Names) -> Names:
        """Return the only properties of objects of a schema, None if there may be others.

        llguidance counts properties only if all of them are required, or any are allowed.
        """
        opening = ("additionalProperties", "minProperties", "maxProperties", *_UNFOLLOWED)
        if "properties" not in schema or any(name in schema for name in opening):
            return None
        own = _own_names({**schema, "patternProperties": {}})  # these stay beside the names
        return _union([own, others, *map(self._joined, self._groups(schema).values())])

    def _inner(self, name: str, value: Any) -> Any:
        """Return the value of a keyword whose schemas hold for parts of the value."""

        def part(schema: Any) -> Any:
            return _ref(_ANY) if _is_true(schema) else self._bounded(schema, frozenset())

        if name in ("items", "additionalProperties") and not isinstance(value, list):
            return part(value)
        if name in ("items", "prefixItems") and isinstance(value, list):
            return list(map(part, value))
        if name in _MAPS and isinstance(value, dict):
            return {key: part(inner) for key, inner in value.items()}
        return value

    def _groups(self, schema: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Return the schemas that hold for the same value, by their keywords."""
        groups = {name: schema[name] for name in _IN_PLACE if isinstance(schema.get(name), list)}
        ref = schema.get("$ref")
        return groups | ({"$ref": [{"$ref": ref}]} if isinstance(ref, str) else {})

    def _in_place(self, key: str, group: list[Any], rest: Names) -> Any:
        if key == "$ref":
            return self._reference(group[0]["$ref"], rest)
        if key != "allOf":  # one branch does not know the names of another
            return [self._bounded(branch, rest) for branch in group]
        return [
            self._bounded(branch, _union([rest, self._joined(group[:i] + group[i + 1 :])]))
            for i, branch in enumerate(group)
        ]

    def _reference(self, pointer: str, rest: Names) -> str:
        """Return the reference to a definition, to a copy of it if its context declares names."""
        target = self._target(pointer)
        if rest == frozenset() or target is None:
            return pointer
        if (pointer, rest) not in self._copies:
            name = self._copies[pointer, rest] = f"copy {len(self._copies)}"
            self._definitions[name] = self._bounded(target, rest)
        return _ref(self._copies[pointer, rest])["$ref"]

    def _target(self, pointer: str) -> Any:
        """Return the schema at a JSON pointer, None for other references."""
        if pointer != "#" and not pointer.startswith("#/"):
            return None
        found: Any = self._root
        for step in unquote(pointer).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping):
                found = found.get(key)
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                return None
        return found

    def _joined(self, schemas: Iterable[Any]) -> Names:
        return _union([self._names(schema) for schema in schemas])

    def _names(self, schema: Any) -> Names:
        """Return the properties that a schema declares for a value, None if it allows any."""
        if not isinstance(schema, dict):
            return frozenset()
        if any(name in schema for name in _UNFOLLOWED):
            return None
        groups = self._groups(schema)
        ref = groups.pop("$ref", None)
        referenced = [self._referenced_names(ref[0]["$ref"])] if ref else []
        return _union([_own_names(schema), *map(self._joined, groups.values()), *referenced])

    def _referenced_names(self, pointer: str) -> Names:
        if pointer not in self._names_of:
            self._names_of[pointer] = frozenset()  # of a reference to itself
            target = self._target(pointer)
            self._names_of[pointer] = None if target is None else self._names(target)
        return self._names_of[pointer]


def _own_names(schema: Mapping[str, Any]) -> Names:
    if schema.get("additionalProperties", False) is not False or schema.get("patternProperties"):
        return None
    properties, required = schema.get("properties"), schema.get("required")
    declared = properties if isinstance(properties, dict) else ()
    wanted = required if isinstance(required, list) else ()
    return frozenset((*declared, *(name for name in wanted if isinstance(name, str))))


def _union(found: Iterable[Names]) -> Names:
    names: frozenset[str] = frozenset()
    for more in found:
        if more is None:
            return None
        names |= more
    return names


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name.replace(' ', '%20')}"}


def _number_bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bounds that a schema of numbers lacks."""
    types = _types(schema, "number")
    if not {"number", "integer"} & {*types}:
        return {}
    limit = _MAX_NUMBER if "number" in types else _MAX_INTEGER
    low = _bound(schema, "minimum", "exclusiveMinimum", max)
    high = _bound(schema, "maximum", "exclusiveMaximum", min)
    found: dict[str, Any] = {}
    if low is None:
        found["minimum"] = -limit if high is None else min(-limit, high - 10 * abs(high))
    if high is None:
        found["maximum"] = limit if low is None else max(limit, low + 10 * abs(low))
    is_narrow = low is not None and high is not None and high - low < _LEAST_SPAN
    if "number" in types and "multipleOf" not in schema and not is_narrow:
        found["multipleOf"] = _STEP
    return found


def _bound(
    schema: Mapping[str, Any], name: str, exclusive: str, narrower: Callable[[list[Any]], float]
) -> float | None:
    given = [_number(schema.get(keyword)) for keyword in (name, exclusive)]
    numbers = [number for number in given if number is not None]
    return narrower(numbers) if numbers else None
