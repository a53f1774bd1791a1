"""Small JSON schemas, grouped by the keywords that they exercise, and some that are refused.

Types, enumerations, bounds of numbers, strings and arrays, objects, combinations and references,
each alone and inside the others, with the edges of their values.
"""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_SMALL: Schema = {"enum": [0, "a", None, [], {}]}
_TYPES: list[Schema] = [
    *({"type": name} for name in ("null", "boolean", "integer", "number")),
    {"type": "string", "maxLength": 20},
    {"type": "array", "items": {"type": "null"}, "maxItems": 4},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": ["null", "boolean"]},
    {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
    {"type": ["boolean", "array"], "items": {"type": "boolean"}, "maxItems": 2},
    {"type": ["string", "integer"], "maxLength": 3, "minimum": -5, "maximum": 5},
]
_VALUES: list[Schema] = [
    *(
        {"const": value}
        for value in (None, True, False, 0, -7, 1.5, "", "a b", 'q"\\', "\u00e9\u4e2d")
    ),
    *(
        {"const": value}
        for value in ([], [1, [2]], {}, {"a": {"b": None}}, "\n\t", "\U0001f600", 10**18)
    ),
    *({"enum": values} for values in ([1], ["x", "xy", "xyz"], [None, True, 0, "0"], [[], [0]])),
    {"enum": ["a\u0300", "\u00e0"]},
    {"enum": [{"k": 1}, {"k": 2}, {"k": 1, "l": 2}]},
    {"enum": ["a", "b", "c"], "type": "string"},
    {"enum": [1, 2, "b"], "type": "integer"},
    {"enum": [0.5, 1, 1e3, -0.25]},
]
_NUMBERS: list[Schema] = [
    *(
        {"type": "integer", "minimum": low, "maximum": high}
        for low, high in ((0, 0), (-1, 1), (5, 12), (-30, -28), (99, 101), (0, 255), (-1000, 1000))
    ),
    *(
        {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high}
        for low, high in ((0, 2), (-2, 2), (9, 100), (-101, -99))
    ),
    *(
        {"type": "number", "minimum": low, "maximum": high}
        for low, high in ((0, 1), (-1, 1), (0.5, 0.75), (-10.5, -10.25), (99.9, 100.1), (2, 2))
    ),
    *(
        {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        for low, high in ((0, 1), (-0.5, 0.5), (1.5, 2.5), (-3, -2))
    ),
    {"type": "integer", "minimum": 10},
    {"type": "integer", "maximum": -10},
    {"type": "number", "minimum": 0},
    {"type": "number", "exclusiveMaximum": 0},
    {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 50},
    {"type": "integer", "multipleOf": 3, "minimum": -20, "maximum": 20},
    {"type": "integer", "minimum": 1.5, "maximum": 3.5},
]
_STRINGS: list[Schema] = [
    *(
        {"type": "string", "minLength": low, "maxLength": high}
        for low, high in ((0, 0), (1, 1), (0, 2), (3, 3), (2, 5), (10, 12))
    ),
    *(
        {"type": "string", "pattern": pattern}
        for pattern in (
            "^a$",
            "^[a-c]{2}$",
            "^(yes|no)$",
            "^[A-Z][a-z]{1,5}$",
            r"^\d{3}-\d{4}$",
            r"^\w{1,4}$",
            "^x?y{0,2}z$",
            "^[^a]$",
            "^(a|bc)(d|ef){1,2}$",
            r"^\[[0-9]\]$",
            r"^a\.b$",
            '^"q"$',
            "^\u00e4{1,3}$",
        )
    ),
    *({"type": "string", "format": name} for name in ("date", "time", "date-time", "uuid", "ipv4")),
    *({"type": "string", "format": name} for name in ("ipv6", "duration")),
    {"type": "string", "pattern": "^[ab]*$", "maxLength": 4},
    {"type": "string", "pattern": "^[ab]+$", "minLength": 2, "maxLength": 4},
]
_ARRAYS: list[Schema] = [
    *(
        {"type": "array", "items": {"type": "boolean"}, "minItems": low, "maxItems": high}
        for low, high in ((0, 0), (1, 1), (0, 2), (2, 2), (2, 4), (5, 5))
    ),
    *(
        {"type": "array", "items": items, "minItems": 1, "maxItems": 2}
        for items in (
            {"type": "integer", "minimum": 0, "maximum": 9},
            {"type": "array", "items": {"type": "null"}, "maxItems": 1},
            {"enum": ["a", 1]},
            {"type": "string", "maxLength": 2},
            {"anyOf": [{"type": "null"}, {"const": 5}]},
        )
    ),
    {"type": "array", "prefixItems": [{"const": 1}, {"const": "b"}], "items": False},
    {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "maxItems": 4},
    {"type": "array", "prefixItems": [{"const": 1}, _SMALL], "minItems": 2, "items": False},
    {"type": "array", "prefixItems": [{"type": "boolean"}] * 3, "minItems": 1, "maxItems": 3},
    {"type": "array", "items": False},
    {"type": "array", "maxItems": 0},
]


def _record(**more: Any) -> Schema:
    """An object with the properties a, b and c."""
    properties = {"a": {"type": "boolean"}, "b": _SMALL, "c": {"type": "integer", "minimum": 0}}
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


_OBJECTS: list[Schema] = [
    *(_record(required=list(names)) for names in ("", "a", "b", "c", "ab", "bc", "ac", "abc")),
    *(
        {
            "type": "object",
            "properties": {name: {"const": 1}},
            "required": [name],
            "additionalProperties": False,
        }
        for name in (
            "",
            " ",
            "a b",
            'q"',
            "\\",
            "/",
            "~",
            "\u00e9",
            "\U0001f600",
            "$ref",
            "type",
            "a\n",
        )
    ),
    *(
        {
            "type": "object",
            "properties": {"x": inner, "y": inner},
            "required": ["x"],
            "additionalProperties": False,
        }
        for inner in (_record(required=["b"]), {"type": "array", "items": _SMALL, "maxItems": 2})
    ),
    {
        "type": "object",
        "patternProperties": {"^k[0-9]$": {"type": "boolean"}},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    {
        "type": "object",
        "required": ["z"],
        "properties": {"z": {"type": "null"}},
        "maxProperties": 1,
    },
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 1},
    {
        "type": "object",
        "properties": {"long_name_of_a_property": {"const": "long_value_of_a_property"}},
        "required": ["long_name_of_a_property"],
        "additionalProperties": False,
    },
]
_COMBINED: list[Schema] = [
    {"anyOf": [{"type": "null"}, {"const": 1}]},
    {"anyOf": [{"const": "ab"}, {"const": "ac"}, {"const": "abc"}]},
    {"anyOf": [_record(required=["a"]), {"type": "array", "items": _SMALL, "maxItems": 1}]},
    {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": 5},
            {"type": "string", "maxLength": 1},
        ]
    },
    {"anyOf": [{"anyOf": [{"const": 1}, {"const": 2}]}, {"const": 3}]},
    {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
    {"oneOf": [{"const": "a"}, {"const": "b"}]},
    {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "integer", "minimum": 0}]},
    {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 8}]},
    {"allOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 9}]},
    {"allOf": [{"type": "string", "minLength": 1}, {"maxLength": 2}]},
    {"allOf": [_record(required=["a"]), {"required": ["c"]}]},
    {"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}]},
    {"$ref": "#/$defs/x", "$defs": {"x": {"type": "boolean"}}},
    {"$ref": "#/definitions/x", "definitions": {"x": {"const": "y"}}},
    {"$defs": {"a b": {"const": 1}}, "$ref": "#/$defs/a%20b"},
    {"$defs": {"a/b": {"const": 1}}, "$ref": "#/$defs/a~1b"},
    {
        "$defs": {"leaf": {"const": 1}, "pair": {"prefixItems": [{"$ref": "#/$defs/leaf"}] * 2}},
        "allOf": [{"$ref": "#/$defs/pair"}, {"type": "array", "minItems": 2, "maxItems": 2}],
    },
    {
        "$defs": {
            "list": {
                "type": "object",
                "properties": {"v": {"const": 0}, "next": {"$ref": "#/$defs/list"}},
                "required": ["v"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/list",
    },
    {
        "type": "object",
        "properties": {"kind": {"const": "leaf"}, "inner": {"$ref": "#"}},
        "required": ["kind"],
        "additionalProperties": False,
    },
]
# With what cannot be enforced, and the place of it.
REFUSED: list[tuple[Schema, str]] = [
    ({"not": {"type": "null"}}, "#"),
    ({"type": "array", "contains": {"const": 1}}, "#"),
    ({"type": "array", "uniqueItems": True}, "#"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "#"),
    ({"type": "object", "propertyNames": {"maxLength": 2}}, "#"),
    ({"if": {"const": 1}, "then": {"const": 1}}, "#"),
    ({"type": "object", "unevaluatedProperties": False}, "#"),
    ({"properties": {"a": {"items": {"not": {}}}}}, "#/properties/a/items"),
    ({"type": "string", "pattern": "(?=a)b"}, "#"),
    ({"$ref": "#/$defs/missing"}, "#"),
    ({"anyOf": [{"type": "null"}, _record(maxProperties=2)]}, "#/anyOf/1"),
]


def schemas() -> Iterator[Schema]:
    """Every schema alone, and some in an array, in an object and beside null."""
    plain = [*_TYPES, *_VALUES, *_NUMBERS, *_STRINGS, *_ARRAYS, *_OBJECTS, *_COMBINED]
    yield from plain
    inner = [schema for schema in plain if "$ref" not in str(schema)]
    for i, schema in enumerate(inner[::2]):
        match i % 3:
            case 0:
                yield {"type": "array", "items": schema, "minItems": 1, "maxItems": 2}
            case 1:
                names: Schema = {"property": schema}
                yield {"type": "object", "properties": names, "additionalProperties": False}
            case _:
                yield {"anyOf": [{"type": "null"}, schema]}
