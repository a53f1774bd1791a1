"""A schema means what its author means: declared properties only, numbers that end, real dates."""

import itertools
import json
import random
from datetime import date, timedelta
from functools import lru_cache
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from swiftchat.chat.model.json_schema import ENFORCED_FORMATS
from swiftchat.chat.model.output_format import (
    OutputFormat,
    json_object_format,
    json_schema_format,
    output_grammar,
)
from swiftchat.engine.api.vocabulary import Vocabulary
from swiftchat.engine.schedule.token_trie import TokenTrie
from swiftchat.errors import UsageError
from tests.chat.model.test_output_format import answer
from tests.support.cases import each_case
from tests.support.json_schemas import Schema

BYTES = Vocabulary((*(bytes([i]) for i in range(256)), b"<stop>"), special=(256,), stop_ids=(256,))
TRIE = TokenTrie(BYTES)
FLAG: Schema = {"type": "boolean"}


def accepts(form: OutputFormat, value: Any) -> bool:
    """Return whether a document is an answer of the format."""
    text = value if isinstance(value, str) else json.dumps(value)
    grammar = output_grammar(form, None, {}, is_thinking=False)
    matcher = _matcher(grammar).deep_copy()
    ids = list(text.encode())
    return bool((not ids or matcher.consume_tokens(ids)) and matcher.is_accepting())


@lru_cache(maxsize=1)
def _matcher(grammar: str) -> LLMatcher:
    """Compile a grammar, which takes ten times as long as to match a short text."""
    return LLMatcher(TRIE.tokenizer, grammar, log_level=0)


def record(*names: str, **more: Any) -> Schema:
    return {
        "type": "object",
        "properties": dict.fromkeys(names, FLAG),
        "required": list(names),
        **more,
    }


def values(names: str) -> dict[str, bool]:
    return dict.fromkeys(names, True)


DEFINED: Schema = {"$defs": {"A": record("a")}}
A: Schema = {"$ref": "#/$defs/A"}
LIST: Schema = {"properties": {"v": FLAG, "next": {"$ref": "#/$defs/L"}}, "required": ["v"]}
# A schema, a document that it allows, and one with a name that nobody declared.
CLOSED: list[tuple[Schema, Any, Any]] = [
    (record("a"), {"a": True}, {"a": True, "x": 1}),
    ({"properties": {"a": FLAG}}, {}, {"x": 1}),
    ({"type": "object", "properties": {}}, {}, {"x": 1}),
    (record(o=0, properties={"a": record("b")}), {"a": {"b": True}}, {"a": {"b": True, "x": 1}}),
    ({"type": "array", "items": record("a")}, [{"a": True}], [{"a": True, "x": 1}]),
    ({"prefixItems": [record("a")]}, [{"a": True}], [{"a": True, "x": 1}]),
    ({"anyOf": [record("a"), {"type": "null"}]}, {"a": True}, {"a": True, "x": 1}),
    ({"anyOf": [record("a"), record("b")]}, {"b": True}, {"a": True, "b": True}),
    (DEFINED | A, {"a": True}, {"a": True, "x": 1}),
    (DEFINED | {"items": A}, [{"a": True}], [{"a": True, "x": 1}]),
    ({"allOf": [record("a"), record("b")]}, values("ab"), values("abx")),
    (DEFINED | {"allOf": [A, record("b")]}, values("ab"), values("abx")),
    (DEFINED | record("b") | A, values("ba"), values("bax")),
    (DEFINED | {"allOf": [A], "properties": {"b": A}}, {"a": True, "b": {"a": True}}, values("ax")),
    (record("a", anyOf=[record("b"), record("c")]), values("ac"), values("abc")),
    ({"allOf": [record("a"), {"anyOf": [record("b"), record("c")]}]}, values("ab"), values("abc")),
    (record("a", allOf=[{"required": ["z"]}]), {"a": True, "z": 5}, {"a": True, "z": 5, "x": 1}),
    (record("a", required=["a", "z"]), {"a": True, "z": [1]}, {"a": True, "z": 5, "x": 1}),
    (
        {"$defs": {"L": LIST}, "$ref": "#/$defs/L"},
        {"v": True, "next": {"v": True}},
        {"v": True, "next": {"v": True, "x": 1}},
    ),
]
# Schemas that say what else there may be.
OPEN: list[tuple[Schema, Any]] = [
    (record("a", additionalProperties=True), {"a": True, "x": 1}),
    (record("a", additionalProperties={}), {"a": True, "x": [1, {"y": None}]}),
    (record("a", additionalProperties={"type": "null"}), {"a": True, "x": None}),
    (record("a", patternProperties={"^k": {"type": "null"}}), {"a": True, "k1": None}),
    ({"allOf": [record("a"), record("b", additionalProperties=True)]}, values("abx")),
    (DEFINED | {"$ref": "#/$defs/A", "additionalProperties": True}, values("ax")),
    ({"type": "object"}, {"x": {"y": [1.5, "z", None, True]}}),
    ({"type": "array"}, [{"x": 1}, [2]]),
    ({}, {"x": 1}),
    (record("a", properties={"a": True}), {"a": {"x": {"y": 1}}}),
]


@each_case(("schema", "wanted", "other"), CLOSED)
def test_objects_have_declared_properties_only(schema: Schema, wanted: Any, other: Any) -> None:
    form = json_schema_format(schema)
    assert accepts(form, wanted)
    assert not accepts(form, other)


@each_case(("schema", "wanted"), OPEN)
def test_objects_have_what_their_schema_allows(schema: Schema, wanted: Any) -> None:
    assert accepts(json_schema_format(schema), wanted)


def test_properties_keep_their_schemas_where_names_are_joined() -> None:
    form = json_schema_format({"allOf": [record("a"), record("b")]})
    assert not accepts(form, {"a": 1, "b": True})
    assert not accepts(form, {"a": True})


def test_a_schema_that_no_closed_object_meets_is_left_open() -> None:
    nobody = {"allOf": [record("a"), {"minProperties": 2, "maxProperties": 2}]}
    try:
        form = json_schema_format(nobody)
    except UsageError:
        return
    assert accepts(form, {"a": True, "x": 1})


LONG = "1" * 60
NUMBERS: list[tuple[Schema, list[str], list[str]]] = [
    ({"type": "number"}, ["3.14159265", "-0.5", "1" * 15], [f"3.{LONG}", LONG, f"-{LONG}"]),
    ({"type": "integer"}, ["0", "-" + "9" * 18], [LONG, f"-{LONG}"]),
    ({"type": ["number", "null"]}, ["null", "0.25"], [f"0.{LONG}"]),
    ({"type": "number", "minimum": 0}, ["0", "2.5"], [LONG, f"0.{LONG}", "-1"]),
    ({"type": "number", "maximum": 1}, ["-2.5"], [f"-{LONG}"]),
    ({"type": "integer", "minimum": 10**17}, ["1" * 18], [LONG]),
    ({"type": "number", "minimum": 1e16}, ["1" * 17], [LONG]),
    ({"type": "integer", "maximum": -(10**17)}, ["-" + "1" * 18], [f"-{LONG}"]),
    ({"type": "number", "multipleOf": 0.25}, ["1.25"], [LONG, "1.3"]),
    ({"type": "array"}, ["[1.5]"], [f"[{LONG}]", f"[0.{LONG}]"]),
    ({}, ["2"], [LONG, f'{{"a":{LONG}}}', f'{{"a":[0.{LONG}]}}']),
    ({"properties": {"a": True}}, ['{"a":1}'], [f'{{"a":{LONG}}}']),
    ({"anyOf": [{"type": "number"}, {"type": "null"}]}, ["1.5"], [LONG]),
    ({"const": 10**30}, [str(10**30)], []),
    ({"type": "number", "minimum": 0, "maximum": 1e-9}, ["0"], []),
]


@each_case(("schema", "wanted", "endless"), NUMBERS)
def test_numbers_end(schema: Schema, wanted: list[str], endless: list[str]) -> None:
    form = json_schema_format(schema)
    assert all(accepts(form, text) for text in wanted)
    assert not any(accepts(form, text) for text in endless)


def test_excluded_bounds_are_excluded() -> None:
    """Also where both bounds have the same whole part, and in alternatives."""
    numbers = (-11.5, -11, -1.25, -1, -0.5, 0, 0.25, 1, 1.5, 11, 11.5)
    texts = [*map(str, numbers), "-11.25", "-1.1", "-0.25", "0.1", "1.25", "11.25", "0.0", "1.0"]
    for low, high in itertools.combinations(numbers, 2):
        schema = {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        for form in (json_schema_format(schema), json_schema_format({"anyOf": [schema]})):
            assert not [
                text for text in texts if not low < float(text) < high and accepts(form, text)
            ]
        plain = [text for text in texts if low < float(text) < high and not text.endswith(".0")]
        assert all(accepts(form, text) for text in plain)
    form = json_schema_format({"exclusiveMinimum": 3, "minimum": 2, "maximum": 3.5})
    assert accepts(form, "3.25") and not accepts(form, "3") and accepts(form, '"text"')
    integers = json_schema_format(
        {"type": ["integer", "null"], "exclusiveMinimum": 3, "maximum": 5}
    )
    assert [n for n in range(9) if accepts(integers, str(n))] == [4, 5]


def test_any_json_object_has_numbers_that_end() -> None:
    assert not accepts(json_object_format(), f'{{"a":{LONG}}}')


def test_dates_exist() -> None:
    form = json_schema_format({"type": "string", "format": "date"})
    choose = random.Random(3)
    years = [1, 4, 96, 100, 400, 1900, 2000, 2100, 2400, 9999, *choose.sample(range(1, 9999), 20)]
    for year, month in itertools.product(years, (1, 2, 4, 12)):
        first = date(year, month, 1)
        days = 31 if month in (1, 12) else (date(year, month + 1, 1) - first).days
        for day in (1, 27, days):
            assert accepts(form, (first + timedelta(days=day - 1)).isoformat().join('""'))
        assert not accepts(form, f'"{year:04}-{month:02}-{days + 1}"')
    moment = json_schema_format({"format": "date-time"})
    assert accepts(moment, '"2024-02-29T12:00:00Z"') and accepts(moment, "5")
    assert not accepts(moment, '"2023-02-29T12:00:00Z"')


def test_formats_and_patterns_hold_together() -> None:
    schema = {"type": "string", "format": "date", "pattern": "^20", "maxLength": 10}
    form = json_schema_format(schema)
    assert accepts(form, '"2024-02-29"')
    assert not accepts(form, '"1999-01-01"') and not accepts(form, '"2023-02-29"')


@each_case("name", sorted(ENFORCED_FORMATS))
def test_known_formats_are_enforced(name: str) -> None:
    schema = {"type": "string", "format": name}
    form = json_schema_format(schema)
    assert not accepts(form, '"-"')
    validator = jsonschema.Draft202012Validator
    for seed in range(3):
        document = json.loads(answer(form, seed))
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(document)


@each_case("name", ["path", "password", "binary", "uri-reference", "int32", "no such"])
def test_other_formats_are_annotations(name: str) -> None:
    assert accepts(json_schema_format({"type": "string", "format": name}), '"-"')


VOID: list[Schema] = [
    *({name: value} for name in ("uniqueItems", "not") for value in (False,)),
    *({name: True} for name in ("propertyNames", "unevaluatedProperties", "unevaluatedItems")),
    *({name: {}} for name in ("dependentRequired", "dependentSchemas", "dependencies")),
    *({name: {"const": 2}} for name in ("if", "then", "else")),
    *({name: 3} for name in ("minContains", "maxContains")),
    {"dependentRequired": {"a": []}},
    {"if": {"const": 2}, "then": True},
    {"contains": {"const": 2}, "minContains": 0},
    {"$dynamicAnchor": "a"},
    {"format": "float"},
    {"type": "integer", "uniqueItems": True, "contains": False, "propertyNames": False},
    {"type": ["integer", "null"], "unevaluatedItems": False, "dependentRequired": {"a": ["b"]}},
]


@each_case("case", VOID)
def test_keywords_without_an_effect_are_accepted(case: Schema) -> None:
    for schema in (case, {"anyOf": [case, {"type": "null"}]}):
        assert accepts(json_schema_format(schema), "1")
    inside = {"properties": {"a": case}, "additionalProperties": False}
    assert accepts(json_schema_format(inside), {"a": 1})


REFUSED: list[Schema] = [
    {"uniqueItems": True},
    {"type": ["array", "null"], "uniqueItems": True},
    {"not": {"type": "null"}},
    {"contains": {"const": 2}},
    {"contains": {"const": 2}, "minContains": 0, "maxContains": 1},
    {"if": {"const": 2}, "then": False},
    {"dependentRequired": {"a": ["b"]}},
    {"dependentSchemas": {"a": False}},
    {"unevaluatedProperties": False},
]


@each_case("case", REFUSED)
def test_keywords_with_an_effect_are_not_dropped(case: Schema) -> None:
    with pytest.raises(UsageError, match="cannot be enforced"):
        json_schema_format(case)


def open_schemas(depth: int) -> st.SearchStrategy[Schema]:
    """Schemas of objects that seldom say what else they may have, joined and referenced."""
    small = st.sampled_from([FLAG, {"type": "null"}, A, {"type": "number"}, {}])
    inner = small if depth == 0 else st.one_of(small, open_schemas(depth - 1))
    named = st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
    plain = st.builds(
        lambda properties, required, more: {
            "type": "object",
            "properties": properties,
            "required": sorted(required),
            **more,
        },
        named,
        st.sets(st.sampled_from("ab"), max_size=2),
        st.sampled_from([{}, {}, {}, {"additionalProperties": False}]),
    )
    if depth == 0:
        return plain
    joined = st.builds(
        lambda schema, key, parts: {**schema, key: parts},
        plain,
        st.sampled_from(["allOf", "anyOf"]),
        st.lists(open_schemas(depth - 1), min_size=1, max_size=2),
    )
    return st.one_of(plain, joined)


@given(open_schemas(2), st.integers(0, 2**31))
@settings(max_examples=100, deadline=None)
def test_every_answer_matches_the_schema_of_its_author(schema: Schema, seed: int) -> None:
    whole = DEFINED | schema
    try:
        form = json_schema_format(whole)
    except UsageError:
        return  # a contradiction
    jsonschema.validate(json.loads(answer(form, seed)), whole)
