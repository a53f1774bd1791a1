"""Pieces of calls while they are written: together they are the arguments of the parsed call."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.tools.call_splitter import ToolCallSplitter
from swiftchat.chat.tools.call_stream import CallDelta, CallText
from swiftchat.chat.tools.formats import FORMATS, ToolFormat
from swiftchat.chat.tools.offer import Offer
from tests.chat.tools.test_formats import ANSWERS, BY_SIGNATURE, HERMES, PIECES

PARAMETERS = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "days": {"type": "array", "items": {"type": "integer"}},
        "is_on": {"type": "boolean"},
    },
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
    for name in ("add", "list")
]


def pieces_of(splitter: ToolCallSplitter, answer: str, seed: int) -> list[str]:
    numbers, found = random.Random(seed), []
    while answer:
        length = numbers.randint(1, 9)
        found += splitter.push(answer[:length])
        answer = answer[length:]
    return [*found, *splitter.flush(True)]


def assert_streamed(tool_format: ToolFormat, answer: str, seed: int = 0) -> list[dict[str, Any]]:
    """Check that the pieces of an answer are its calls; return their arguments."""
    splitter = ToolCallSplitter(tool_format.offering(Offer(TOOLS)))
    pieces = pieces_of(splitter, answer, seed)
    streamed: dict[int, list[CallDelta]] = {}
    for piece in pieces:
        if isinstance(piece, CallDelta):
            streamed.setdefault(piece.number, []).append(piece)
    assert list(streamed) == list(range(len(splitter.calls)))
    for call, deltas in zip(splitter.calls, streamed.values(), strict=True):
        assert [delta.name for delta in deltas] == [call.name] + [""] * (len(deltas) - 1)
        assert {delta.id for delta in deltas} == {call.id}
        joined = "".join(delta.arguments for delta in deltas)
        assert joined == json.dumps(call.arguments, ensure_ascii=False)
    return [call.arguments for call in splitter.calls]


@pytest.mark.parametrize(("signature", "answer"), ANSWERS)
def test_every_format(signature: str, answer: str) -> None:
    for seed in range(10):
        assert assert_streamed(BY_SIGNATURE[signature], answer, seed) == [{"a": "x y", "b": "2"}]


XML = """<tool_call>
<function=add>
<parameter=text>
{}
</parameter>
<parameter=count>
7
</parameter>
<parameter=days>
[1, "2"]
</parameter>
<parameter=is_on>
true
</parameter>
</function>
</tool_call>"""
TYPED = {"count": 7, "days": [1, 2], "is_on": True}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "one line",
        "\n",
        "a\n\nb\n",
        'say "hi" \\ </p </parameter',
        "tab\t\x01 é 😀",
        "</par\n</",
    ],
)
def test_texts_and_types_of_parameters(text: str) -> None:
    for seed in range(10):
        (found,) = assert_streamed(HERMES, XML.replace("{}", text), seed)
        assert found == {"text": text, **TYPED}
        assert list(map(type, found["days"])) == [int, int]


def test_a_parameter_that_is_not_closed_ends_with_the_call() -> None:
    for answer, expected in (
        ("<function=add><parameter=text>\na\n</function>", {"text": "a"}),
        ("<function=add><parameter=count>7</function>", {"count": 7}),
        ("<function=add>\n<parameter=text>a", {"text": "a"}),
        ("<function=add>\n<parameter=count>7", {"count": 7}),
    ):
        for seed in range(10):
            assert assert_streamed(HERMES, f"<tool_call>{answer}</tool_call>", seed) == [expected]


def call_text(arguments: str, name: str = "add") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("{}", {}),
        ("{ }", {}),
        ('{"text": ""}', {"text": ""}),
        ('{"count": "7", "text": "8"}', {"count": 7, "text": "8"}),
        ('{"days": "[1, 2]", "is_on": "True"}', {"days": [1, 2], "is_on": True}),
        ('{\n  "days": [\n    1,\n    "2"\n  ],\n  "x": null\n}', {"days": [1, 2], "x": None}),
        ('{"x": {"y": ["}", "]", "\\"", {}]}, "z": -1.5e3}', None),
        ('{"x": NaN, "y": [Infinity, 1e999]}', {"x": None, "y": [None, None]}),
        ('{"text": "a\\u00e9\\ud83d\\ude00\\n\\\\ud83d \\/"}', {"text": "aé😀\n\\ud83d /"}),
        ('{"text": "\\ud83d"}', {"text": "\ufffd"}),
        ('{"text": "\\ud83d\\ud83d\\ude00 \\ude00\\ud83dx"}', {"text": "\ufffd😀 \ufffd\ufffdx"}),
        ('{"te\\u0078t": "</tool_call>"}', {"text": "</tool_call>"}),
        ('{"text": "line\nend\t"}', {"text": "line\nend\t"}),
    ],
)
def test_texts_and_types_of_json(arguments: str, expected: dict[str, Any] | None) -> None:
    for seed in range(10):
        (found,) = assert_streamed(HERMES, call_text(arguments), seed)
        assert found == (json.loads(arguments) if expected is None else expected)


def test_several_calls_have_an_index_each() -> None:
    first, second = call_text('{"count": 1}'), call_text('{"text": "x"}', "list")
    both = '[{"name": "add", "arguments": {"text": "a"}}, {"name": "list", "arguments": {}}]'
    loose = '```json\n{"name": "list", "arguments": {"count": "3"}}\n```'
    for seed in range(10):
        found = assert_streamed(
            HERMES, f"Wait.{first}\n{second}<tool_call>{both}</tool_call>", seed
        )
        assert found == [{"count": 1}, {"text": "x"}, {"text": "a"}, {}]
        assert assert_streamed(HERMES, f"{first}{loose}", seed) == [{"count": 1}, {"count": 3}]
        assert_streamed(BY_SIGNATURE["[TOOL_CALLS]"], f"[TOOL_CALLS]{both}", seed)
        doubled = '<tool_call>{{"name": "add", "arguments": {"text": "a"}}}</tool_call>'
        assert assert_streamed(HERMES, doubled + first, seed) == [{"text": "a"}, {"count": 1}]
        two = '[TOOL_CALLS]add[ARGS]{"text": "a"}[TOOL_CALLS]list[ARGS]{"count": 2}'
        assert assert_streamed(BY_SIGNATURE["[TOOL_CALLS]"], two, seed) == [
            {"text": "a"},
            {"count": 2},
        ]


def test_a_long_text_comes_as_it_is_written() -> None:
    for begin, end in (
        ('<tool_call>{"name": "add", "arguments": {"text": "', '"}}</tool_call>'),
        ("<tool_call><function=add><parameter=text>", "</parameter></function></tool_call>"),
    ):
        splitter = ToolCallSplitter(HERMES.offering(Offer(TOOLS)))
        assert [one.name for one in deltas_of(splitter, begin)][:1] == ["add"]
        for word in ("many ", "words ", "of text"):
            assert "".join(one.arguments for one in deltas_of(splitter, word)) == word
        assert "".join(one.arguments for one in deltas_of(splitter, end)) == '"}'
        assert [call.arguments for call in splitter.calls] == [{"text": "many words of text"}]


def deltas_of(splitter: ToolCallSplitter, text: str) -> list[CallDelta]:
    return [piece for piece in splitter.push(text) if isinstance(piece, CallDelta)]


@pytest.mark.parametrize(
    "answer",
    [
        call_text('{"text": "a" "b"}'),
        call_text('{"text": "a\\x"}'),
        call_text('{"count": one}'),
        call_text('{"text": "a'),
    ],
)
def test_text_of_a_call_that_has_begun_and_is_none_is_told_apart(answer: str) -> None:
    for seed in range(10):
        splitter = ToolCallSplitter(HERMES.offering(Offer(TOOLS)))
        pieces = pieces_of(splitter, answer, seed)
        assert not splitter.calls and "".join(pieces) == answer
        has_begun = any(isinstance(piece, CallDelta) for piece in pieces)
        assert has_begun == any(isinstance(piece, CallText) for piece in pieces)
    unknown = call_text("{}", "other").replace("{}", "[]")
    pieces = pieces_of(ToolCallSplitter(HERMES.offering(Offer(TOOLS))), unknown, 0)
    assert not any(isinstance(piece, CallDelta | CallText) for piece in pieces)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(["text", "count", "days"]) | st.text(), JSON, max_size=4),
    st.booleans(),
    st.sampled_from([None, 1, 4]),
    st.integers(0, 9),
)
def test_any_arguments(
    arguments: dict[str, Any], is_ascii: bool, indent: int | None, seed: int
) -> None:
    written = json.dumps(arguments, ensure_ascii=is_ascii, indent=indent)
    for tool_format, answer in (
        (HERMES, call_text(written)),
        (BY_SIGNATURE["[TOOL_CALLS]"], f"[TOOL_CALLS]add[ARGS]{written}"),
    ):
        (found,) = assert_streamed(tool_format, answer, seed)
        assert list(found) == list(arguments)


@pytest.mark.parametrize(
    "answer",
    [
        call_text(json.dumps({"text": "a line\n" * 15_000})),
        call_text(json.dumps({"x": [{"y": "a line\n" * 15_000}]})),
        call_text('{"text": "' + "a line " * 15_000),
        XML.replace("{}", "a line\n" * 15_000),
        "```json\n" + json.dumps({"name": "add", "arguments": {"text": "a line\n" * 15_000}}),
        "`" * 100_000,
        "[" * 100_000,
        "<function=" * 10_000,
    ],
    ids=lambda answer: answer[:30],
)
def test_long_answers_take_a_bounded_time(answer: str) -> None:
    """Time grows with the length, not with its square; the test has a time limit."""
    pieces_of(ToolCallSplitter(HERMES.offering(Offer(TOOLS))), answer, 1)


@given(st.sampled_from(FORMATS), PIECES)
def test_random_text_never_fails(tool_format: ToolFormat, pieces: list[str]) -> None:
    pieces_of(ToolCallSplitter(tool_format.offering(Offer(TOOLS))), "".join(pieces), 1)
