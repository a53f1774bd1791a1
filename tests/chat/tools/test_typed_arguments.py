"""Texts that become the values which a tool's parameters ask for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.tools.typed_arguments import typed_arguments

NUMBER = {"type": "number"}

DEFINITIONS = {
    "Number": {"type": "integer"},
    "Maybe": {"anyOf": [{"$ref": "#/$defs/Number"}, {"type": "null"}]},
    "Point": {"properties": {"x": {"$ref": "#/$defs/Number"}, "name": {"type": "string"}}},
    "Tree": {"type": "object", "properties": {"inner": {"$ref": "#/$defs/Tree"}, "n": NUMBER}},
    "Circle": {"$ref": "#/$defs/Circle"},
    "Circles": {"anyOf": [{"$ref": "#/$defs/Circles"}] * 9},
    "a/b~c": {"type": "boolean"},
}


def typed(value: object, schema: object) -> object:
    whole = {"type": "object", "properties": {"x": schema}, "$defs": DEFINITIONS}
    return typed_arguments({"x": value}, whole)["x"]


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("1", {"type": "integer"}, 1),
        ("1", {"type": "string"}, "1"),
        ("1", {}, "1"),
        ("1", True, "1"),
        (" 2.5\n", {"type": "number"}, 2.5),
        ("true", {"type": "boolean"}, True),
        ("False", {"type": "boolean"}, False),
        ("None", {"type": ["integer", "null"]}, None),
        ("7", {"type": ["integer", "string"]}, "7"),
        ('["a"]', {"type": "array", "items": {"type": "string"}}, ["a"]),
        ("['a', 1]", {"type": "array"}, ["a", 1]),
        ('{"k": "1"}', {"type": "object"}, {"k": "1"}),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5"),
        ("2", {"enum": [1, 2]}, 2),
        ("2", {"enum": ["1", "2"]}, "2"),
        ("seven", {"type": "integer"}, "seven"),
        ("{1, 2}", {"type": "array"}, "{1, 2}"),
        ("__import__('os')", {"type": "object"}, "__import__('os')"),
        ("[" * 5000, {"type": "array"}, "[" * 5000),
        (3, {"type": "string"}, 3),
        ("[1]", {"type": "integer"}, "[1]"),
        ("7.0", {"type": "integer"}, 7),
        ("7.5", {"type": "integer"}, "7.5"),
        ("7", NUMBER, 7),
        ("NaN", NUMBER, "NaN"),
        ("1e999", NUMBER, "1e999"),
        ('["\\ud83d", 1e999]', {"type": "array"}, ["\ufffd", None]),
        ("7", {"oneOf": [{"type": "boolean"}, NUMBER]}, 7),
        ("null", {"anyOf": [NUMBER, {"type": "null"}]}, None),
        ("7", {"allOf": [{"type": "integer"}], "description": "d"}, 7),
        ("7", {"const": 7}, 7),
        ("7", ref("Number"), 7),
        ("7", ref("Maybe"), 7),
        ("null", ref("Maybe"), None),
        ("true", ref("a~1b~0c"), True),
        ("7", ref("Circle"), "7"),
        ("7", ref("Circles"), "7"),
        ("7", ref("missing"), "7"),
        ("7", {"$ref": "https://example.org/schema"}, "7"),
        ('{"x": "7", "name": "8"}', ref("Point"), {"x": 7, "name": "8"}),
        ({"x": "7", "name": "8"}, ref("Point"), {"x": 7, "name": "8"}),
        ('{"inner": {"n": "1", "m": "2"}}', ref("Tree"), {"inner": {"n": 1, "m": "2"}}),
        (["1", "x"], {"items": NUMBER}, [1, "x"]),
        (["1", "2"], {"prefixItems": [{"type": "string"}], "items": NUMBER}, ["1", 2]),
        ({"a": "1"}, {"type": "object", "additionalProperties": NUMBER}, {"a": 1}),
    ],
)
def test_the_type_follows_the_schema(text: object, schema: object, value: object) -> None:
    assert typed(text, schema) == value and type(typed(text, schema)) is type(value)


def test_arguments_without_a_schema_are_unchanged() -> None:
    for schema in (None, [], {}, {"properties": []}, {"properties": {"y": {"type": "integer"}}}):
        assert typed_arguments({"x": "1"}, schema) == {"x": "1"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "anyOf", "allOf", "$ref", "enum", "items", "x"]),
            inner,
            max_size=3,
        )
    ),
)


@given(st.text(), JSON)
def test_any_schema_leaves_a_text_or_a_value(text: str, schema: Any) -> None:
    typed(text, schema)
