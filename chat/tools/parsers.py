"""Parsers of the text between the markers of a tool call, one for each kind of syntax.

The text is untrusted. Each parser returns the calls in it, [] if it is not a call, in a time
proportional to its length: hence no regular expressions that search for a closing mark.
"""

import ast
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from swiftchat.chat.history.tool_call import ToolCall, arguments_of
from swiftchat.chat.tools.json_values import after_separators, json_entries

_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters", "args")
_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_NAME = re.compile(r"[^\s<>{}\[\]\ud800-\udfff]{1,128}")
MINIMAX_MARK = "]<]minimax[>["  # before each tag
_INVOKE = re.compile(r'<([^<>\s"/]{0,24})invoke name="')
_FUNCTION = "<function="
_MAX_DEPTH = 64
_GEMMA_QUOTE = '<|"|>'
_MAX_EXPRESSION_CHARACTERS = 65_536


def parse_json(text: str) -> list[ToolCall]:
    """Parse objects with a name and arguments, in a list or one after the other."""
    return _all(map(_call_of, json_entries(text)))


def parse_offered(text: str, names: Collection[str]) -> list[ToolCall]:
    """Parse the same without marks of a call: it must have arguments, and one of these names."""
    entries = json_entries(text)
    if not all(isinstance(entry, dict) for entry in entries):
        return []
    functions = [entry.get("function") for entry in entries]
    fields = [f if isinstance(f, dict) else e for f, e in zip(functions, entries, strict=True)]
    has_arguments = all(any(key in one for key in _ARGUMENTS) for one in fields)
    calls = _all(map(_call_of, entries)) if has_arguments else []
    return calls if all(call.name in names for call in calls) else []


def parse_named(text: str) -> list[ToolCall]:
    """Parse objects whose only key is the name and whose value are the arguments (Apertus)."""
    entries = json_entries(text)
    if not all(isinstance(entry, dict) and len(entry) == 1 for entry in entries):
        return []
    return _calls(next(iter(entry.items())) for entry in entries)


def parse_tagged(text: str) -> list[ToolCall]:
    """Parse the syntaxes inside `<tool_call>`: JSON, `<function=…>` and `<arg_key>`."""
    if text.lstrip().startswith(("{", "[")):
        return parse_json(text)
    return parse_functions(text) if "<function=" in text else parse_argument_keys(text)


def parse_functions(text: str) -> list[ToolCall]:
    """Parse `<function=NAME>` with `<parameter=NAME>` or with JSON inside."""
    found: list[tuple[str, object]] = []
    at = text.find(_FUNCTION)
    while at >= 0:
        name_end = text.find(">", at)
        begin = name_end + 1 if name_end >= 0 else len(text)
        name = text[at + len(_FUNCTION) : name_end if name_end >= 0 else len(text)]
        json_begin = after_separators(text, begin)
        if text.startswith("{", json_begin):  # a closing mark in its strings does not end it
            try:
                value, end = json.JSONDecoder(strict=False).raw_decode(text, json_begin)
            except (ValueError, RecursionError):
                return []
        else:
            end = text.find("</function>", begin)
            end = end if end >= 0 else len(text)
            parameters = _between(text[begin:end], "<parameter=", "</parameter>")
            pairs = (pair.partition(">") for pair in parameters)
            value = _texts({key: text for key, _, text in pairs})
        found.append((name, value))
        at = text.find(_FUNCTION, end)
    return _calls(found)


def parse_function(text: str) -> list[ToolCall]:
    """Parse the same after its first marker."""
    return parse_functions(f"<function={text}")


def parse_invokes(text: str) -> list[ToolCall]:
    """Parse `<invoke name="…">` with `<parameter name="…">` inside.

    The names of the tags may begin with a mark of the model's family, as in `<atem:invoke …>`.
    """
    opened = _INVOKE.search(text)
    mark = opened[1] if opened else ""
    found = []
    for part in _between(text, f'<{mark}invoke name="', f"</{mark}invoke>"):
        name, _, body = part.partition('"')
        values = {}
        for parameter in _between(body, f'<{mark}parameter name="', f"</{mark}parameter>"):
            key, _, rest = parameter.partition('"')
            values[key] = rest.partition(">")[2]
        found.append((name, _texts(values)))
    return _calls(found)


def parse_function_tag(text: str) -> list[ToolCall]:
    """Parse MiniCPM's call after `<function name="`: a name, and `<param name="…">` with texts."""
    name, _, body = text.partition('"')
    values = {}
    for parameter in _between(body, '<param name="', "</param>"):
        key, _, rest = parameter.partition('"')
        value = rest.partition(">")[2]
        if value.startswith("<![CDATA[") and value.endswith("]]>"):
            value = value.removeprefix("<![CDATA[").removesuffix("]]>")
        values[key] = value
    return _calls([(name, values)])


def parse_solar(text: str) -> list[ToolCall]:
    """Parse Solar Open's calls: an id, a name and JSON, each after a control token."""
    calls = []
    for part in _between(text, "<|tool_call:begin|>", "<|tool_call:end|>"):
        call_id, _, rest = part.partition("<|tool_call:name|>")
        name, mark, body = rest.partition("<|tool_call:args|>")
        fields = {"id": call_id.strip(), "name": name.strip(), "arguments": body}
        calls.append(_call_of(fields) if mark else None)
    return _all(calls)


def parse_gemma(text: str) -> list[ToolCall]:
    """Parse Gemma 4's call: `call:NAME{key:value,…}`, with texts between `<|"|>`."""
    name, mark, body = text.strip().removeprefix("call:").partition("{")
    try:
        value, end = _gemma_value(f"{{{body}", 0)
    except (ValueError, IndexError, RecursionError):
        return []
    return _calls([(name, value)]) if mark and not body[end - 1 :].strip() else []


def _gemma_value(text: str, at: int) -> tuple[Any, int]:
    """Return the value that begins at a position, and the position after it."""
    if text.startswith(_GEMMA_QUOTE, at):
        start = at + len(_GEMMA_QUOTE)
        end = text.index(_GEMMA_QUOTE, start)
        return text[start:end], end + len(_GEMMA_QUOTE)
    if text[at] not in "{[":
        end = at
        while text[end] not in ",]}":
            end += 1
        return json.loads(text[at:end]), end
    is_mapping, values, entries = text[at] == "{", [], {}
    at += 1
    while text[at] not in "]}":
        key = ""
        if is_mapping:
            if text.startswith(_GEMMA_QUOTE, at):
                key, at = _gemma_value(text, at)
            colon = text.index(":", at)
            key, at = key or text[at:colon].strip(), colon + 1
        value, at = _gemma_value(text, at)
        values.append(value)
        entries[key] = value
        at += text[at] == ","
    return entries if is_mapping else values, at + 1


def parse_deepseek(text: str) -> list[ToolCall]:
    """Parse DeepSeek's calls: `function` or the name, a separator, and JSON, fenced or not."""
    found = []
    for part in _between(text, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"):
        name, _, body = part.partition("<｜tool▁sep｜>")
        if name.strip() == "function":
            name, _, body = body.partition("\n")
        body = body.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
        found.append((name, body))
    return _calls(found)


def parse_kimi(text: str) -> list[ToolCall]:
    """Parse Kimi's calls; the id has the name in it, as `functions.NAME:0`."""
    calls = []
    for part in _between(text, "<|tool_call_begin|>", "<|tool_call_end|>"):
        call_id, _, body = part.partition("<|tool_call_argument_begin|>")
        name = call_id.strip().removeprefix("functions.").partition(":")[0]
        calls.append(_call_of({"id": call_id.strip(), "name": name, "arguments": body}))
    return _all(calls)


def parse_kimi_tags(text: str) -> list[ToolCall]:
    """Parse Kimi K3's calls: tags of control tokens, one for each argument, or for JSON."""
    found: list[tuple[str, object]] = []
    for part in _between(text, "<|open|>call ", "<|close|>call<|sep|>"):
        head, _, body = part.partition("<|sep|>")
        blocks = _between(body, "<|open|>json", "<|close|>json<|sep|>")
        block = next((block.partition("<|sep|>")[2] for block in blocks), None)
        values: dict[str, object] = {}
        for pair in _between(body, "<|open|>argument ", "<|close|>argument<|sep|>"):
            attributes, _, value = pair.partition("<|sep|>")
            is_text = _attribute(attributes, "type") in ("string", "")
            values[_attribute(attributes, "key")] = value if is_text else _json_or_text(value)
        found.append((_attribute(head, "tool"), values if block is None else block))
    return _calls(found)


def _attribute(tag: str, name: str) -> str:
    value = tag.partition(f'{name}="')[2].partition('"')[0]
    return value.replace("&quot;", '"').replace("&amp;", "&")


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


@dataclass
class _Element:
    tag: str
    text: str
    parts: "list[_Element]" = field(default_factory=list)

    @property
    def value(self) -> object:
        """The text, a list if all parts are items, else a mapping."""
        if not self.parts:
            return self.text
        if all(part.tag == "item" for part in self.parts):
            return [part.value for part in self.parts]
        return {part.tag: part.value for part in self.parts}


def parse_minimax(text: str) -> list[ToolCall]:
    """Parse MiniMax M3's calls: `<invoke name="…">` with an element for each argument."""
    stack = [_Element("", "")]
    for piece in text.split(MINIMAX_MARK)[1:]:
        tag, mark, rest = piece.removeprefix("<").partition(">")
        if tag.startswith("/"):
            if stack.pop().tag.partition(" ")[0] != tag[1:] or not stack:
                return []
        else:
            element = _Element(tag, rest)
            stack[-1].parts.append(element)
            stack.append(element)
        if not mark or len(stack) > _MAX_DEPTH:
            return []
    head = 'invoke name="'
    if not all(call.tag.startswith(head) for call in stack[0].parts):
        return []
    return _calls(
        (call.tag.removeprefix(head).removesuffix('"'), call.value if call.parts else {})
        for call in stack[0].parts
    )


def parse_mistral(text: str) -> list[ToolCall]:
    """Parse what follows `[TOOL_CALLS]`: JSON, or NAME[ARGS]JSON once or more often."""
    if text.lstrip().startswith(("[", "{")):
        return parse_json(text)
    calls = []
    for part in text.split("[TOOL_CALLS]"):
        head, mark, body = part.partition("[ARGS]")
        name, _, call_id = head.partition("[CALL_ID]")
        fields = {"id": call_id.strip(), "name": name.strip(), "arguments": body}
        calls.append(_call_of(fields) if mark else None)
    return _all(calls)


def parse_recipients(text: str) -> list[ToolCall]:
    """Parse what follows `>>>` in an answer of Functionary: a name and JSON on the next line."""
    decoder, at = json.JSONDecoder(strict=False), 0
    found: list[tuple[str, object]] = []
    try:
        while at < len(text):
            end = text.index("\n", at)
            value, after = decoder.raw_decode(text, after_separators(text, end))
            found.append((text[at:end], value))
            at = after_separators(text, after)
            if at < len(text):
                at = text.index(">>>", at, at + 3) + 3
    except (ValueError, RecursionError):
        return []
    return _calls(found)


def parse_harmony(text: str) -> list[ToolCall]:
    """Parse what follows `to=functions.` in an answer of gpt-oss: a name, and JSON."""
    head, mark, body = text.partition("<|message|>")
    name = re.match(r"[^<\s]+", head)
    return _calls([(name[0], body)]) if name and mark else []


def parse_python(text: str) -> list[ToolCall]:
    """Parse a list of Python calls with constant keyword arguments; nothing is evaluated."""
    if len(text) > _MAX_EXPRESSION_CHARACTERS:
        return []
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return _all(map(_python_call, tree.elts if isinstance(tree, ast.List) else [tree]))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []


def _python_call(node: ast.expr) -> ToolCall | None:
    if not isinstance(node, ast.Call) or node.args:
        return None
    values = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    arguments = json.loads(json.dumps(values))  # a set or bytes raise TypeError
    return _call_of({"name": ast.unparse(node.func), "arguments": arguments})


def parse_argument_keys(
    text: str, release: str = "", each: str = "", separator: str = ""
) -> list[ToolCall]:
    """Parse a name, and `<arg_key>` and `<arg_value>` in turn (GLM, Hunyuan).

    The names of the tags end with `release`. Several calls begin with a tag `each`, and a tag
    `separator` may follow the name.
    """
    calls = []
    for part in text.split(each)[1:] if each else [text]:
        head = part.partition(f"<arg_key{release}>")[0]
        name = head.partition(separator)[0] if separator else head.partition("</")[0]
        values = {}
        for pair in _between(part, f"<arg_key{release}>", f"</arg_value{release}>"):
            key, _, rest = pair.partition(f"</arg_key{release}>")
            values[key.strip()] = rest.partition(f"<arg_value{release}>")[2]
        calls.append((name, _texts(values)))
    return _calls(calls)


def _calls(found: Iterable[tuple[str, object]]) -> list[ToolCall]:
    """Return calls from names and arguments, objects or JSON; [] if one is invalid."""
    return _all(_call_of({"name": name.strip(), "arguments": value}) for name, value in found)


def _all(calls: Iterable[ToolCall | None]) -> list[ToolCall]:
    """Return the calls, [] if one is None."""
    found = list(calls)
    valid = [call for call in found if call is not None]
    return valid if len(valid) == len(found) else []


def _between(text: str, start: str, end: str) -> Iterator[str]:
    """Yield the parts between two marks; the last end may be missing."""
    at = text.find(start)
    while at >= 0:
        stop = text.find(end, at)
        yield text[at + len(start) : stop if stop >= 0 else len(text)]
        at = text.find(start, stop) if stop >= 0 else -1


def _texts(values: dict[str, str]) -> dict[str, str]:
    """Return the values without the line ends that separate them from their tags."""
    return {key: text.removeprefix("\n").removesuffix("\n") for key, text in values.items()}


def _call_of(value: Any) -> ToolCall | None:
    """Return the call that an object expresses, None if it is not one."""
    if not isinstance(value, dict):
        return None
    inner = value.get("function")
    fields = inner if isinstance(inner, dict) else value
    name = next((fields[key] for key in _NAMES if key in fields), inner)
    arguments = arguments_of(next((fields[key] for key in _ARGUMENTS if key in fields), None))
    if not isinstance(name, str) or not _NAME.fullmatch(name) or arguments is None:
        return None
    call_id = value.get("id", value.get("tool_call_id"))
    if isinstance(call_id, str) and _ID.fullmatch(call_id):
        return ToolCall(name, arguments, call_id)
    return ToolCall(name, arguments)
