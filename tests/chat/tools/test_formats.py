"""Calls of tools in streamed answers: the formats of the model families, and hostile text."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.chat.tools.call_splitter import ToolCallSplitter
from swiftchat.chat.tools.formats import (
    FORMATS,
    ToolFormat,
    find_plain_format,
    find_tool_format,
)
from swiftchat.chat.tools.offer import Offer
from swiftchat.chat.tools.parsers import MINIMAX_MARK

BY_SIGNATURE = {tool_format.signature: tool_format for tool_format in FORMATS}
HERMES = BY_SIGNATURE["<tool_call>"]
ARGUMENTS = {"a": "x y", "b": "2"}
JSON = '{"a": "x y", "b": "2"}'
CALL = f'{{"name": "add", "arguments": {JSON}}}'
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("add", "list")]

# Answers that call `add` once, as the published templates write them.
ANSWERS = [
    ("<tool_call>", f"<tool_call>\n{CALL}\n</tool_call>"),
    ("<tool_call>", f"<tool_call>{CALL.replace(', ', ',' + chr(10))}"),  # the end marker is missing
    (
        "<tool_call>",
        "<tool_call>\n<function=add>\n<parameter=a>\nx y\n</parameter>\n<parameter=b>\n2\n"
        "</parameter>\n</function>\n</tool_call>",
    ),
    (
        "<tool_call>",
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>x y</arg_value>\n<arg_key>b</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>",
    ),
    ("<tool_calls>", f"<tool_calls>\n{CALL}\n</tool_calls>"),
    (
        "<seed:tool_call>",
        "<seed:tool_call>\n<function=add>\n<parameter=a>x y</parameter>\n"
        "<parameter=b>2</parameter>\n</function>\n</seed:tool_call>",
    ),
    (
        "<atem:function_calls>",
        ' to=add<|message|><atem:function_calls>\n<atem:invoke name="add">\n'
        '<atem:parameter name="a">x y</atem:parameter>\n<atem:parameter name="b">2'
        "</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
    ),
    ('"parameters": dictionary of argument name', CALL.replace("arguments", "parameters")),
    ('"parameters": dictionary of argument name', f"<|python_tag|>{CALL}"),
    ("[TOOL_CALLS]", f"[TOOL_CALLS][{CALL}]"),
    ("[TOOL_CALLS]", f"[TOOL_CALLS]add[ARGS]{JSON}"),
    ("[TOOL_CALLS]", f"[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{JSON}"),
    (
        "<｜tool▁calls▁begin｜>",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{JSON}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "<｜tool▁calls▁begin｜>",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{JSON}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    ("<|tool_call|>", f"<|tool_call|>[{CALL}]"),
    ("<TOOLCALL>", f"<TOOLCALL>[{CALL}]</TOOLCALL>"),
    (
        "<|START_ACTION|>",
        f'<|START_ACTION|>[\n{{"tool_call_id": "0", "tool_name": "add", "parameters": {JSON}}}\n]'
        "<|END_ACTION|>",
    ),
    (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0"
        f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "<|channel|>commentary",
        "<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json"
        f"<|message|>{JSON}",
    ),
    ("<|channel|>commentary", f" to=functions.add<|channel|>commentary json<|message|>{JSON}"),
    ("SmolLM, trained by Hugging Face", f"<tool_call>\n{CALL}\n</tool_call>"),
    (
        "'<｜tool▁sep｜>' + tool['function']['arguments']",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{JSON}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "'<|open|>'",
        '<|open|>tools<|sep|><|open|>call tool="add" index="1"<|sep|>'
        '<|open|>argument key="a" type="string"<|sep|>x y<|close|>argument<|sep|>'
        '<|open|>argument key="b" type="string"<|sep|>2<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    (
        "'<|open|>'",
        '<|open|>tools<|sep|><|open|>call tool="add" index="1"<|sep|><|open|>json type="object"'
        f"<|sep|>{JSON}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    (
        MINIMAX_MARK,
        '@<tool_call>\n@<invoke name="add">@<a>x y@</a>@<b>2@</b>@</invoke>\n@</tool_call>'.replace(
            "@", MINIMAX_MARK
        ),
    ),
    ("`directly-answer`", f'Action:\n```json\n[{{"tool_name": "add", "parameters": {JSON}}}]```'),
    (">>>${recipient}", f"add\n{JSON}"),
    ("functools[", f"functools[{CALL}]"),
    ("List of tools: ", '<|tool_call_start|>[add(a="x y", b="2")]<|tool_call_end|>'),
    ("<function=", f"<function=add>{JSON}</function>"),
    ("<|tool_call>call:", '<|tool_call>call:add{a:<|"|>x y<|"|>,b:<|"|>2<|"|>}<tool_call|>'),
    ("<|tools_prefix|>", f'<|tools_prefix|>[{{"add": {JSON}}}]<|tools_suffix|>'),
    (
        "<|tool_call:begin|>",
        "<|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>add"
        f"<|tool_call:args|>{JSON}<|tool_call:end|>",
    ),
    ("<|function_call|>", f"<|function_call|>{CALL}"),
    ("<|function_call|>", f"<|function_call|>{CALL}<|message_sep|>"),
    ("'role': 'function call'", f"<|message_sep|>\n\nfunction call<|role_sep|>\n{CALL}"),
    (
        '<function name="',
        '<function name="add"><param name="a">x y</param>'
        '<param name="b"><![CDATA[2]]></param></function>',
    ),
]


def split(
    tool_format: ToolFormat | None, answer: str, seed: int = 0, is_complete: bool = True
) -> tuple[str, list[Any]]:
    """Return text and calls of an answer that arrives in random pieces."""
    splitter, text, rest = ToolCallSplitter(tool_format), "", answer
    numbers = random.Random(seed)
    while rest:
        length = numbers.randint(1, 9)
        text += "".join(splitter.push(rest[:length]))
        rest = rest[length:]
    text += "".join(splitter.flush(is_complete))
    return text, [(call.name, call.arguments) for call in splitter.calls]


def split_everywhere(tool_format: ToolFormat, answer: str) -> tuple[str, list[Any]]:
    """Return text and calls, which are the same wherever the answer is cut in two."""
    found = []
    for cut in range(len(answer) + 1):
        splitter = ToolCallSplitter(tool_format)
        parts = [*splitter.push(answer[:cut]), *splitter.push(answer[cut:]), *splitter.flush(True)]
        calls = [(call.name, call.arguments) for call in splitter.calls]
        found.append(("".join(parts), calls))
    assert all(one == found[0] for one in found)
    return found[0]


@pytest.mark.parametrize(("signature", "answer"), ANSWERS)
def test_a_call_is_split_from_the_answer(signature: str, answer: str) -> None:
    tool_format = find_tool_format(f"{{{{ {signature} }}}}")
    assert tool_format is BY_SIGNATURE[signature]
    tool_format = tool_format.offering(Offer(TOOLS))
    for seed in range(20):
        assert split(tool_format, answer, seed) == ("", [("add", ARGUMENTS)])
        if not answer.startswith("{") and not tool_format.prompted:
            text = f"I look it up.\n\n{answer}"
            assert split(tool_format, text, seed) == ("I look it up.\n\n", [("add", ARGUMENTS)])


@pytest.mark.parametrize(("signature", "answer"), ANSWERS)
def test_an_answer_may_be_cut_anywhere(signature: str, answer: str) -> None:
    tool_format = BY_SIGNATURE[signature].offering(Offer(TOOLS))
    assert split_everywhere(tool_format, answer) == ("", [("add", ARGUMENTS)])


@pytest.mark.parametrize(
    ("answer", "text", "calls"),
    [
        ("all\nHello", "Hello", []),
        ("all\nI look.>>>add\n{}", "I look.", ["add"]),
        ("add\n{}>>>list\n{}", "", ["add", "list"]),
        ("add\n{}\n>>>list\n{}", "", ["add", "list"]),
        ('add\n{"a": ">>>all\\n"}', "", ["add"]),
        ("all\na >>> b", "a >>> b", []),
        ("alles\ngut", "alles\ngut", []),
        ("al", "al", []),
        ("add\nnot JSON", "add\nnot JSON", []),
        ("add\n{} and text", "add\n{} and text", []),
        ("", "", []),
    ],
)
def test_answers_of_functionary(answer: str, text: str, calls: list[str]) -> None:
    """The prompt ends with the first `>>>`; `all` is the user."""
    found, named = split_everywhere(BY_SIGNATURE[">>>${recipient}"], answer)
    assert (found, [name for name, _ in named]) == (text, calls)


def test_text_of_functionary_without_tools() -> None:
    plain = find_plain_format("{{ >>>${recipient} }}")
    assert plain is not None and find_plain_format("{{ <tool_call> }}") is None
    assert split_everywhere(plain, "all\nHello") == ("Hello", [])
    assert split_everywhere(plain, "add\n{}") == ("add\n{}", [])


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("@<a>1@</a>@<b>@<item>x@</item>@<item>y@</item>@</b>", {"a": "1", "b": ["x", "y"]}),
        ("@<m>@<k>v@</k>@<n>@<o>2@</o>@</n>@</m>", {"m": {"k": "v", "n": {"o": "2"}}}),
        ("@<a>1 < 2 > </b>@</a>", {"a": "1 < 2 > </b>"}),
        ("", {}),
        ("@<a>1@</b>", None),
        ("@<a>" * 5000, None),
        ("@</invoke>@</a>", None),
        ("@</invoke>@</>@</>", None),
    ],
)
def test_arguments_of_minimax(text: str, arguments: dict[str, Any] | None) -> None:
    written = f'@<invoke name="add">{text}@</invoke>'.replace("@", MINIMAX_MARK)
    found = [call.arguments for call in BY_SIGNATURE[MINIMAX_MARK].parse(written)]
    assert found == ([] if arguments is None else [arguments])


def test_arguments_of_kimi_have_types() -> None:
    values = {"number": "1.5", "boolean": "true", "null": "null", "array": '["x"]', "string": "1"}
    arguments = "".join(
        f'<|open|>argument key="&quot;{kind}" type="{kind}"<|sep|>{text}<|close|>argument<|sep|>'
        for kind, text in values.items()
    )
    text = f'<|open|>call tool="add" index="1"<|sep|>{arguments}<|close|>call<|sep|>'
    (call,) = BY_SIGNATURE["'<|open|>'"].parse(text)
    assert list(call.arguments.values()) == [1.5, True, None, ["x"], "1"]
    assert list(call.arguments) == [f'"{kind}' for kind in values]


def test_every_format_has_an_example() -> None:
    assert {signature for signature, _ in ANSWERS} == set(BY_SIGNATURE)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("call:add{}", {}),
        ('call:add{a:<|"|>},{:"<|"|>}', {"a": '},{:"'}),
        ("call:add{n:1,f:-2.5e3,t:true,z:null}", {"n": 1, "f": -2500.0, "t": True, "z": None}),
        (
            'call:add{l:[1,<|"|>b<|"|>,[]],m:{k:{<|"|>q r<|"|>:2}}}',
            {"l": [1, "b", []], "m": {"k": {"q r": 2}}},
        ),
        (' call:add{a:<|"|><|"|>}\n', {"a": ""}),
        ("call:add", None),
        ("call:add{a:1", None),
        ("call:add{a:1}}", None),
        ("call:add{a:x}", None),
        ('call:add{a:<|"|>x}', None),
        ("call:add[1]", None),
        ("call:add{a}", None),
        ("call:add" + "{a:" * 5000, None),
        ("call:add{" + "[" * 5000, None),
    ],
)
def test_arguments_of_gemma(text: str, arguments: dict[str, Any] | None) -> None:
    found = [call.arguments for call in BY_SIGNATURE["<|tool_call>call:"].parse(text)]
    assert found == ([] if arguments is None else [arguments])


@pytest.mark.parametrize("tool_format", [one for one in FORMATS if one.write is not None])
def test_written_calls_are_parsed_again(tool_format: ToolFormat) -> None:
    calls = [
        ToolCall("add", {"a": "x 'y'\n", "b": 2, "c": [True, None, {"d": 1.5}]}),
        ToolCall("list", {}),
    ]
    expected = [(call.name, call.arguments) for call in calls]
    assert tool_format.write is not None
    texts = tool_format.write(calls)
    written = "\n".join(f"{tool_format.opens[0]}{one}{tool_format.close}" for one in texts)
    assert split(tool_format, written) == ("", expected)


LLAMA = BY_SIGNATURE['"parameters": dictionary of argument name']
INDENTED = json.dumps({"name": "add", "parameters": ARGUMENTS}, indent=4)
LIST = '{"name": "list", "arguments": {}}'


@pytest.mark.parametrize(
    ("answer", "text", "names"),
    [
        (CALL, "", ["add"]),
        (f"\n {INDENTED}\n", "", ["add"]),
        (f"[{CALL}, {LIST}]", "", ["add", "list"]),
        (f"{{{CALL}}}", "", ["add"]),
        (f"{{ {CALL}\n}}\n{{{LIST}}}", "", ["add", "list"]),
        (f"```json\n{{{CALL}}}\n```", "", ["add"]),
        (f"<tools>{{{CALL}}}</tools>", "", ["add"]),
        (f"{CALL}; {LIST}", "", ["add", "list"]),
        (f"{CALL}\n{LIST}", "", ["add", "list"]),
        (f"```json\n{INDENTED}\n```", "", ["add"]),
        (f"```\n{CALL}\n```\n", "", ["add"]),
        (f"```json\n[\n{CALL}\n]\n```", "", ["add"]),
        (f"```json {CALL}```", "", ["add"]),
        (f"```json\n{CALL}", "", ["add"]),
        (f"```json\n{CALL}\n```\n```json\n{LIST}\n```", "", ["add", "list"]),
        (f"I add.\n\n```json\n{CALL}\n```\nThen?", "I add.\n\n\nThen?", ["add"]),
        (f"<tools>\n{CALL}\n</tools>", "", ["add"]),
        (f"<function_call>{CALL}</function_call>", "", ["add"]),
        (f"Then <tools>{CALL}", "Then ", ["add"]),
        (f"<|tool_call|>[{CALL}]", "", ["add"]),
        (f"[TOOL_CALLS] [{CALL}, {LIST}]", "", ["add", "list"]),
        ("I add.\n<function=add>\n<parameter=a>\nx\n</parameter>\n</function>", "I add.", ["add"]),
        (f"<function=add>{JSON}</function>\n<function=list>{{}}</function>", "", ["add", "list"]),
        ('{"type": "function", "function": {"name": "add", "parameters": {}}}', "", ["add"]),
        ('{"function": "add", "parameters": {}}', "", ["add"]),
        ('{"arguments": "{}", "name": "add"}', "", ["add"]),
        ('{"name": "add", "arguments": {"a": "```"}}', "", ["add"]),
        ('```json\n{"name": "add", "arguments": {"a": "```\\"```"}}\n```', "", ["add"]),
    ],
)
def test_calls_without_the_marks_of_the_template(answer: str, text: str, names: list[str]) -> None:
    """So Qwen2.5-Coder and other small models write them; Llama 3 indents its JSON."""
    for tool_format in (HERMES, LLAMA):
        found, calls = split_everywhere(tool_format.offering(Offer(TOOLS)), answer)
        assert (found.strip(), [name for name, _ in calls]) == (text.strip(), names)


@pytest.mark.parametrize(
    "answer",
    [
        f"{CALL} is how to add.",
        f"To add, write {CALL}",
        f"`{CALL}`",
        '{"name": "add"}',
        '{"name": "add", "age": 3}',
        '{"name": "other", "arguments": {}}',
        f'[{CALL}, {{"name": "other", "arguments": {{}}}}]',
        f"[{CALL}, 1]",
        '{"name": "add", "arguments": [1]}',
        '{"city": "Oslo", "name": "add", "arguments": {}}',
        "[]",
        "[1, 2]",
        "{}",
        f"{{{CALL}",
        f"{{{{{CALL}}}}}",
        '{{"a": 1}}',
        '{"',
        '```json\n{"a": 1}\n```',
        f"```json\n{CALL}\nand more\n```",
        f"```python\nx = {CALL}\n```",
        "```\n```",
        "<b>[</b>",
        f"<tools>{CALL} text</tools>",
        f"[{CALL}, text]",
        "[TOOL_CALLS] [1, 2]",
        "<function=other>{}</function>",
        "<function=add",
        "<function=add> is how it begins",
    ],
)
def test_json_that_is_no_call_of_an_offered_tool_is_text(answer: str) -> None:
    for tool_format in (HERMES, LLAMA):
        assert split_everywhere(tool_format.offering(Offer(TOOLS)), answer) == (answer, [])


def test_a_call_behind_json_that_is_none() -> None:
    marked = f"<tool_call>{CALL}</tool_call>"
    for answer in ('{"a": 1}\n', f"{CALL} or ", '```json\n{"a": 1}\n```\n', "```json\n["):
        found, calls = split_everywhere(HERMES.offering(Offer(TOOLS)), answer + marked)
        assert (found, len(calls)) == (answer, 1)


def test_text_that_cannot_become_a_call_arrives_at_once() -> None:
    for begin in ('{"city": ', '```json\n{"city": ', '{"name": "other"', "[1", "<b>text"):
        splitter = ToolCallSplitter(HERMES.offering(Offer(TOOLS)))
        assert "".join(splitter.push(begin)) == begin and not splitter.is_in_call


@pytest.mark.parametrize(
    ("signature", "answer"),
    [
        ("<tool_call>", "<tool_call>{}</tool_call>"),
        ("<tool_call>", "<tool_call>\n<function=add>{}</function>\n</tool_call>"),
        ("<tool_calls>", "<tool_calls>[{}]</tool_calls>"),
        ("<function=", "<function=add>{}</function>"),
        ("`directly-answer`", "Action:\n```json\n[{}]```"),
        ("<|START_ACTION|>", "<|START_ACTION|>[{}]<|END_ACTION|>"),
    ],
)
def test_a_closing_mark_in_an_argument_does_not_end_the_call(signature: str, answer: str) -> None:
    tool_format = BY_SIGNATURE[signature]
    values = {"a": f'1 {tool_format.close} "2" \\{tool_format.close}', "b": tool_format.close}
    arguments = json.dumps(values)
    is_whole = "function=" not in answer
    value = f'{{"name": "add", "arguments": {arguments}}}' if is_whole else arguments
    answer = answer.replace("{}", value) + " Then."
    assert split_everywhere(tool_format, answer) == (" Then.", [("add", values)])


def test_a_damaged_call_does_not_hide_the_next_one() -> None:
    """A quotation mark is missing: without it the closing mark would be in a string."""
    damaged = '<tool_call>{"name": "add", "arguments": {"a": "x}}</tool_call>'
    answer = f"{damaged} Again: <tool_call>{CALL}</tool_call>"
    assert split_everywhere(HERMES, answer) == (f"{damaged} Again: ", [("add", ARGUMENTS)])


def test_arguments_have_the_types_that_the_tool_asks_for() -> None:
    parameters = {"properties": {"b": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "add", "parameters": parameters}}
    for signature, answer in ANSWERS:
        found = split(BY_SIGNATURE[signature].offering(Offer([tool])), answer)
        assert found == ("", [("add", {"a": "x y", "b": 2})])


@pytest.mark.parametrize(("signature", "answer"), ANSWERS)
def test_arguments_are_text_that_every_program_reads(signature: str, answer: str) -> None:
    for value in ("\ud83d", "NaN", "-Infinity", "1e999"):
        written = answer.replace('"2"', f'"{value}"' if value == "\ud83d" else value)
        for text in (written, written.replace("\ud83d", "\\ud83d")):
            _, calls = split(BY_SIGNATURE[signature].offering(Offer(TOOLS)), text)
            for _, arguments in calls:
                json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()


def test_several_calls_keep_their_order_and_get_different_ids() -> None:
    answer = f"First.<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call> Then."
    assert split(HERMES, answer) == ("First. Then.", [("add", ARGUMENTS)] * 2)
    mistral = '[{"name": "a", "id": "abcdefghi"}, {"name": "b", "id": "abcdefghi"}]'
    splitter = ToolCallSplitter(BY_SIGNATURE["[TOOL_CALLS]"])
    pieces = [*splitter.push(f"[TOOL_CALLS]{mistral}"), *splitter.flush(True)]
    assert not "".join(pieces)
    first, second = splitter.calls
    assert first.id == "abcdefghi" != second.id


@pytest.mark.parametrize(
    "answer",
    [
        "<tool_call>not JSON</tool_call> and more",
        '<tool_call>{"name": 5}</tool_call>',
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "add"',
        "The marker <tool_call> begins a call.",
        "a < b, <tool",
    ],
)
def test_what_is_not_a_call_stays_text(answer: str) -> None:
    for seed in range(20):
        assert split(HERMES, answer, seed) == (answer, [])


def test_a_call_of_an_interrupted_answer_is_text() -> None:
    answer = f"One. <tool_call>{CALL}</tool_call>"
    assert split(HERMES, answer, is_complete=False) == (answer, [])


def test_without_tools_markers_are_text() -> None:
    assert split(None, f"<tool_call>{CALL}</tool_call>") == (f"<tool_call>{CALL}</tool_call>", [])


def test_text_arrives_before_the_answer_ends() -> None:
    splitter = ToolCallSplitter(HERMES)
    assert list(splitter.push("some text <tool")) == ["some text "]
    assert list(splitter.push("s> and")) == ["<tools> and"]
    assert not list(splitter.push("<tool_call>{")) and splitter.is_in_call


MARKERS = sorted({marker for f in FORMATS for marker in f.markers if marker})
LOOSE = [
    "```json\n",
    "```",
    "<tools>\n",
    "</tools>",
    "<function=add>",
    "<|x|>",
    '{"name": "add", "arguments": {"a": "',
]
PIECES = st.lists(
    st.sampled_from(
        [*MARKERS, *LOOSE, CALL, JSON, "[", "]", "{", '"', "<", ">", "\\", "\n", "\x1b", "x="]
    )
    | st.text(max_size=5),
    max_size=12,
)


@given(st.sampled_from(FORMATS), PIECES, st.booleans(), st.booleans())
def test_random_text_never_fails_and_does_not_depend_on_the_pieces(
    tool_format: ToolFormat, pieces: list[str], is_complete: bool, has_tools: bool
) -> None:
    answer = "".join(pieces)
    tool_format = tool_format.offering(Offer(TOOLS)) if has_tools else tool_format
    found = split(tool_format, answer, 1, is_complete)
    assert found == split(tool_format, answer, 2, is_complete)
    text, calls = found
    if not calls and not tool_format.plain:
        assert sorted(text) == sorted(answer)  # nothing is lost


@given(st.sampled_from(FORMATS), st.text())
def test_a_parser_never_fails_and_its_calls_can_be_shown(
    tool_format: ToolFormat, text: str
) -> None:
    for call in tool_format.parse(text):
        shown = sanitize(call.text)
        assert not any(ord(c) < 32 and c not in "\n\t" for c in shown)


@pytest.mark.parametrize("tool_format", FORMATS)
def test_deep_nesting_and_repeated_marks_take_a_bounded_time(tool_format: ToolFormat) -> None:
    """Time grows with the length, not with its square; the test has a time limit."""
    nested = ["[" * 100_000, '{"name": "f", "arguments": ' * 5000, "f(a=" * 5000, "-" * 60_000]
    inner = ["<parameter=", '<invoke name="a">', "<arg_key>", "<｜tool▁sep｜>", " ", "1 "]
    for deep in [*nested, *(mark * 20_000 for mark in (*MARKERS, *inner))]:
        assert len(tool_format.parse(deep)) <= 1
