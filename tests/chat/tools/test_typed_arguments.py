"""Texts that become the values which a tool's parameters ask for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.tools.typed_arguments import typed_arguments


def typed(value: object, schema: object) -> object:
    return typed_arguments({"x": value}, {"type": "object", "properties": {"x": schema}})["x"]


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
        | st.dictionaries(st.sampled_from(["type", "anyOf", "enum", "x"]), inner, max_size=3)
    ),
)


@given(st.text(), JSON)
def test_any_schema_leaves_a_text_or_a_value(text: str, schema: Any) -> None:
    typed(text, schema)
