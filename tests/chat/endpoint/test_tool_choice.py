"""Which tools an answer may call or must: the grammar of the answer, and its calls."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from swiftchat.chat.model.strict_calls import strict_calls_format
from swiftchat.chat.tools.formats import find_tool_format
from swiftchat.engine.api.vocabulary import Vocabulary
from swiftchat.engine.schedule.token_trie import TokenTrie
from tests.chat.endpoint.test_http import Served, serving
from tests.support.cases import each_case
from tests.support.fake_engine import TOOL_TEMPLATE, make_folder

NUMBER, THINKING = {"type": "integer"}, TOOL_TEMPLATE + "{# <think></think> #}"


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        "$defs": {"N": NUMBER},
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("add", a=NUMBER, b={"$ref": "#/$defs/N"}), tool("say", text={"type": "string"})]
ADD = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
SAY = '{"name": "say", "arguments": {"text": "x"}}'
FORMAT = {
    "type": "json_schema",
    "json_schema": {
        "name": "x",
        "schema": {
            "type": "object",
            "properties": {"n": {"$ref": "#/definitions/n"}},
            "required": ["n"],
            "additionalProperties": False,
            "definitions": {"n": NUMBER},
        },
    },
}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(make_folder(tmp_path / "model", TOOL_TEMPLATE), *[ADD] * 5) as served:
        yield served


def accepts(served: Served, text: str) -> bool:
    """Return whether the last answer had to, or might be, this text."""
    constraint = served.engine.constraints[-1]
    assert constraint is not None
    matcher = LLMatcher(TokenTrie(constraint.vocabulary).tokenizer, constraint.grammar, log_level=0)
    ids = list(text.encode())
    return bool(matcher.consume_tokens(ids) and matcher.is_accepting())


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": list(map(named, names))},
    }


@pytest.mark.parametrize(
    ("options", "right", "wrong"),
    [
        (
            {"tool_choice": "required"},
            [ADD, SAY, f"[{ADD}]", f"[{SAY}, {ADD}]"],
            ["text", "[]", "{}", ADD.replace("add", "sub"), ADD.replace("2", '"2"'), ADD + ADD],
        ),
        ({"tool_choice": "required", "parallel_tool_calls": False}, [ADD, SAY], [f"[{ADD}]"]),
        ({"tool_choice": named("add")}, [ADD], [SAY, f"[{ADD}]", "text"]),
        ({"tool_choice": allowed("required", "say")}, [SAY, f"[{SAY}, {SAY}]"], [ADD]),
        ({"response_format": FORMAT}, ['{"n": 3}', ADD, f"[{ADD}]"], ['{"n": "3"}', "text", "{}"]),
        ({"response_format": FORMAT, "tool_choice": "required"}, [ADD], ['{"n": 3}']),
        ({"response_format": FORMAT, "tool_choice": "none"}, ['{"n": 3}'], [ADD]),
        ({"response_format": {"type": "json_object"}}, ['{"x": 1}', ADD], ["text"]),
    ],
    ids=str,
)
def test_what_an_answer_must_be(
    options: dict[str, Any], right: list[str], wrong: list[str], served: Served
) -> None:
    assert served.chat(tools=TOOLS, **options)[0] == 200
    assert [text for text in right if not accepts(served, text)] == []
    assert [text for text in wrong if accepts(served, text)] == []


def test_auto_constrains_nothing(served: Served) -> None:
    for options in ({}, {"tool_choice": "auto"}, {"tool_choice": allowed("auto", "say")}):
        assert served.chat(tools=TOOLS, **options)[0] == 200
        assert served.engine.constraints[-1] is None
    assert '"say"' in served.engine.prompt_text() and '"add"' not in served.engine.prompt_text()


def strict(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": True}}


CALLS = "<tool_call>\n{0}\n</tool_call>"


def test_arguments_of_a_strict_tool_match_its_schema(served: Served) -> None:
    """Also if the model chooses whether to call; other tools and all text are free."""
    odd = strict(tool("odd", a={"not": {}}))
    assert served.chat(tools=[strict(TOOLS[0]), TOOLS[1], odd])[0] == 200
    other = '{"name": "say", "arguments": {"text": [1]}}'
    spaced = '{ "name" :"add",\n  "arguments": {"a": 1, "b": 2} }'
    whole = (ADD, spaced, other, other.replace("say", "odd"), ADD.replace("add", "sub"))
    right = ["", "Hi {there}", *whole, *map(CALLS.format, whole), f"[{ADD}, {other}]"]
    right += [f"```json\n{ADD}\n``` and", f"Wait. {CALLS.format(ADD)}\n{CALLS.format(spaced)}"]
    assert [text for text in right if not accepts(served, text)] == []
    broken = (ADD.replace("2", '"2"'), ADD.replace('"b"', '"c"'), '{"name": "add"}')
    ends = [f"{CALLS.format(ADD)}\n{CALLS.format(broken[0])}"]
    wrong = [*broken, *map(CALLS.format, broken), f"[{other}, {broken[0]}]", *ends]
    assert [text for text in wrong if accepts(served, text)] == []


def test_strict_tools_after_reasoning(tmp_path: Path) -> None:
    with serving(make_folder(tmp_path / "model", THINKING), "hi") as served:
        assert served.chat(tools=[strict(TOOLS[0])])[0] == 200
        assert accepts(served, f"<think>{ADD}</think>\n{ADD}")
        assert not accepts(served, f"<think>a</think>\n{ADD.replace('2', 'null')}")


# A format by a text of its templates, a call in its syntax, and control tokens in it.
SYNTAXES = [
    ("<|tool_call|>", "<|tool_call|>[" + ADD + "]<|/tool_call|>", ["<|tool_call|>"]),
    ("[TOOL_CALLS]", '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}', ["[TOOL_CALLS]", "[ARGS]"]),
    (
        "[TOOL_CALLS]",
        '[TOOL_CALLS]add[CALL_ID]x1[ARGS]{"a": 1, "b": 2}',
        ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
    ),
    (
        "<|channel|>commentary",
        '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1, "b": 2}',
        ["<|channel|>", "<|constrain|>", "<|message|>", "<|start|>"],
    ),
    (
        "<|channel|>commentary",
        '<|start|>assistant<|channel|>commentary to=functions.add json<|message|>{"a": 1, "b": 2}',
        ["<|channel|>", "<|constrain|>", "<|message|>", "<|start|>"],
    ),
    (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0"
        '<|tool_call_argument_begin|>{"a": 1, "b": 2}<|tool_call_end|><|tool_calls_section_end|>',
        [
            *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_end|>"),
            *("<|tool_call_argument_begin|>", "<|tool_calls_section_end|>"),
        ],
    ),
    (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
        '{"a": 1, "b": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [
            *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
            *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        ],
    ),
    ("<function=", '<function=add>{"a": 1, "b": 2}</function>', []),
]


@each_case(("signature", "call", "control"), SYNTAXES)
def test_strict_calls_in_other_syntaxes(signature: str, call: str, control: list[str]) -> None:
    """The arguments of strict tools match, those of others, and text, are free."""
    ids = {text: 256 + i for i, text in enumerate([*control, "<other>"])}
    stop = 256 + len(ids)
    pieces = (*(bytes([i]) for i in range(256)), *(text.encode() for text in ids), b"<end>")
    special = (*ids.values(), stop)
    trie = TokenTrie(Vocabulary(pieces, special=special, stop_ids=(stop,)))
    tool_format = find_tool_format(signature)
    assert tool_format is not None
    schemas = {"add": TOOLS[0]["function"]["parameters"]}
    form = strict_calls_format(schemas, tool_format, ids)
    grammar = json.dumps({"grammars": [form.grammar]})

    def accepts(text: str) -> bool:
        parts = re.split(f"({'|'.join(map(re.escape, ids))})", text)
        sent = [i for part in parts for i in ([ids[part]] if part in ids else part.encode())]
        matcher = LLMatcher(trie.tokenizer, grammar, log_level=0)
        return bool(matcher.consume_tokens(sent) and matcher.is_accepting())

    broken = call.replace("2", '"2"')
    free = broken.replace("add", "add_all")
    right = [call, f"Hi<other> add. {call}", f"{free}{call} and {call}", free, "to add<other>"]
    assert [text for text in right if not accepts(text)] == []
    wrong = [broken, f"Hi<other> add. {broken}", f"{free}{call} and {broken}", call[:-1] + broken]
    assert [text for text in wrong if accepts(text)] == []


def test_a_required_call_comes_while_it_is_written(tmp_path: Path) -> None:
    """Also from a model that begins its answers with a marker, and after reasoning."""
    muse = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<atem:function_calls>{{ c.function.arguments }}{% endfor %}{% endfor %}"
        "{{ tools | tojson }}{{ '<|start|>assistant' }}"
    )
    for source, answer in ((TOOL_TEMPLATE, ADD), (THINKING, f"<think>a</think>{ADD}"), (muse, ADD)):
        with serving(make_folder(tmp_path / "model", source), answer, answer) as served:
            events = served.chat(tools=TOOLS, tool_choice="required", stream=True)[1]
            message = served.chat(tools=TOOLS, tool_choice=named("add"))[1]["choices"][0]["message"]
        deltas = [event["choices"][0]["delta"] for event in events]
        calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
        assert "".join(call["arguments"] for call in calls) == '{"a": 1, "b": 2}'
        assert len(calls) > 2 and calls[0]["name"] == "add"
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 1, "b": 2}


def test_one_call_at_most_ends_the_answer(tmp_path: Path) -> None:
    call = f"<tool_call>{ADD}</tool_call>"
    answers = [f"Wait. {call}\n{call} More.", f"<tool_call>[{ADD}, {SAY}]</tool_call>", ADD, "Hi."]
    with serving(make_folder(tmp_path / "model", TOOL_TEMPLATE), *answers * 2) as served:
        for number, answer in enumerate(answers):
            options: Any = {"tools": TOOLS, "parallel_tool_calls": False}
            choice = served.chat(**options)[1]["choices"][0]
            served.engine.answers.insert(0, {"text": answer})
            events = served.chat(stream=True, **options)[1]
            served.engine.answers.append({"text": answer})
            calls = choice["message"].get("tool_calls", [])
            assert len(calls) == (number < 3)
            assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
            deltas = [event["choices"][0]["delta"] for event in events]
            indexes = {call["index"] for delta in deltas for call in delta.get("tool_calls", ())}
            assert len(indexes) == len(calls)
            text = "".join(delta.get("content") or "" for delta in deltas)
            assert text == {0: "Wait. ", 3: "Hi."}.get(number, "")


@pytest.mark.parametrize(
    "choice",
    [
        "any",
        "add",
        named("sub"),
        {"type": "function"},
        {"type": "custom", "custom": {"name": "add"}},
        allowed("auto", "sub"),
        allowed("auto"),
        allowed("always", "add"),
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": "add"}},
        {"type": "allowed_tools", "allowed_tools": []},
    ],
    ids=str,
)
def test_wrong_choices_are_refused(choice: Any, served: Served) -> None:
    status, body = served.chat(tools=TOOLS, tool_choice=choice)
    assert status == 400 and body["error"]["param"] == "tool_choice"
    status, body = served.chat(tool_choice="required")
    assert status == 400 and body["error"]["param"] == "tool_choice"


def test_tools_without_a_schema_that_can_be_enforced(served: Served) -> None:
    """Their arguments may be anything; those of a tool without parameters are empty."""
    tools = [tool("add", a={"not": {"type": "string"}})]
    assert served.chat(tools=tools, tool_choice="required")[0] == 200
    assert accepts(served, '{"name": "add", "arguments": {"a": "x"}}')
    bare = [{"type": "function", "function": {"name": "list"}}]
    assert served.chat(tools=bare, tool_choice="required")[0] == 200
    assert accepts(served, '{"name": "list", "arguments": {}}')
    assert not accepts(served, '{"name": "list", "arguments": {"a": 1}}')
    for broken in ([{}], [{"type": "function"}]):
        status, body = served.chat(tools=broken, tool_choice="required")
        assert status == 400 and body["error"]["param"] == "tools"
