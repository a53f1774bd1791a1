"""Schemas and patterns of strangers: an error or a grammar, in bounded time and memory."""

import json
import resource
import time
from typing import Any

import pytest

from swiftchat.chat.model.output_format import chosen_format, output_grammar, schema_format
from swiftchat.chat.options.config import ChatConfig
from swiftchat.engine.schedule.constraint import Constraint
from swiftchat.errors import UsageError
from tests.chat.model.test_output_format import CONTROL, PIECES, TRIE

_MAX_CPU_S, _MAX_GROWTH_KIB = 20.0, 1 << 20


def nested(depth: int, keyword: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"properties": {"x": schema}} if keyword == "properties" else {keyword: [schema]}
    return schema


def doubled(keyword: str) -> dict[str, Any]:
    """Forty definitions, each with two references to the next one."""
    chain = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
    return {"$defs": {**chain, "d40": {"type": "null"}}, "$ref": "#/$defs/d0"}


SCHEMAS: dict[str, dict[str, Any]] = {
    "deep properties": nested(150, "properties"),
    "deep anyOf": nested(300, "anyOf"),
    "a reference to itself": {"$ref": "#"},
    "a cycle": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "a recursive object": {"type": "object", "properties": {"x": {"$ref": "#"}}},
    "an address": {"$ref": "http://127.0.0.1:9/schema"},
    "a file": {"$ref": "file:///etc/passwd"},
    "many values": {"enum": [f"v{i}" for i in range(100_000)]},
    "a long value": {"const": "x" * 50_000},
    "many properties": {"required": [f"p{i}" for i in range(3000)]},
    "many optional properties": {"properties": {f"p{i}": {} for i in range(2000)}},
    "doubled anyOf": doubled("anyOf"),
    "doubled allOf": doubled("allOf"),
    "doubled oneOf": doubled("oneOf"),
    "a product": {"allOf": [{"anyOf": [{"const": f"{i}{j}"} for j in range(9)]} for i in range(9)]},
    "a pattern": {"type": "string", "pattern": "^((a+)+)+$"},
    "a pattern of counts": {"type": "string", "pattern": "((x{0,500}){0,500}){0,500}"},
    "huge lengths": {"type": "string", "minLength": 10**9, "maxLength": 10**18},
    "huge lists": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
    "huge numbers": {"type": "integer", "minimum": -(10**400), "maximum": 10**400},
    "small steps": {"type": "number", "multipleOf": 1e-300},
    "options that are none": {"x-guidance": 5},
    "options of a wrong type": {"x-guidance": {"whitespace_pattern": [1]}},
    "a fault among many": {
        "$defs": {f"d{i}": {"const": "y" * 100} for i in range(3000)},
        "properties": {f"p{i}": {"type": "string"} for i in range(3000)},
        "uniqueItems": True,
    },
}
PATTERNS = ["((a+)+)+$", "(x{1,1000}){1,1000}", "(" * 5000 + ")" * 5000, "a{1000000000}", "(?=a)b"]


def follow(**options: Any) -> None:
    """Make the grammar and walk some steps, or raise `UsageError`; check time and memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    try:
        schema = options.get("schema")
        form = schema_format(schema) if schema else chosen_format(ChatConfig(**options))
        assert form is not None
        grammar = output_grammar(form, None, CONTROL, is_thinking=False)
        constraint = Constraint(TRIE, grammar, len(PIECES))
        for _ in range(20):
            allowed = constraint.allowed.nonzero().flatten().tolist()
            if not allowed:
                break
            constraint.accept(allowed[-1])
    except UsageError as error:
        assert len(error.message) < 2000 and "Traceback" not in error.message
    assert time.process_time() - start < _MAX_CPU_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < _MAX_GROWTH_KIB


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(name: str) -> None:
    follow(schema=json.dumps(SCHEMAS[name]))


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern[:20])
def test_patterns(pattern: str) -> None:
    follow(regex=pattern)
