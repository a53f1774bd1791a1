"""How a chat template takes tools, calls and results: found by rendering small conversations."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swiftchat.chat.tools.formats import ToolFormat, find_tool_format
from swiftchat.errors import BadModelFile

if TYPE_CHECKING:
    from swiftchat.tokenizer import Tokenizer

_NAME, _ARGUMENT, _RESULT = "find_word_length", "rhinoceros", "ten letters"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Count the letters of a word.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "The word."}},
            "required": ["word"],
        },
    },
}
_QUESTION = {"role": "user", "content": "How long is it?"}
_CALL_ID = "abcde1234"


@dataclass(frozen=True)
class ToolSupport:
    """The template's `source`, the format of its calls, and whether arguments are JSON text."""

    source: str
    tool_format: ToolFormat
    text_arguments: bool

    def adapted(self, messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages with arguments of calls as the template takes them."""
        return [_with_text_arguments(m) if self.text_arguments else dict(m) for m in messages]


def find_tool_support(tokenizer: "Tokenizer", source: str | None) -> ToolSupport | None:
    """Return how a template takes tools, None if it does not.

    `source` None means the model's own templates, of which `tool_use` comes first.
    """
    text = source or tokenizer.templates.get("tool_use") or tokenizer.templates.get("default")
    tool_format = find_tool_format(text or "")
    if text is None or tool_format is None:
        return None
    if _NAME not in _rendered(tokenizer, text, [_QUESTION]):
        return None
    for text_arguments in (False, True):
        support = ToolSupport(text, tool_format, text_arguments)
        shown = _rendered(tokenizer, text, support.adapted(_example()))
        if _RESULT in shown and _ARGUMENT in shown:
            return support
    return None


def _example() -> list[dict[str, Any]]:
    function = {"name": _NAME, "arguments": {"word": _ARGUMENT}}
    call = {"id": _CALL_ID, "type": "function", "function": function}
    return [
        _QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": _CALL_ID, "name": _NAME, "content": _RESULT},
    ]


def _rendered(tokenizer: "Tokenizer", source: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a prompt with the example tool, "" if the template rejects it."""
    try:
        prompt = tokenizer.prompt(messages, template=source, tools=[_TOOL])
    except BadModelFile:
        return ""
    return "".join(span.text for span in prompt.spans)


def _with_text_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return dict(message)
    calls = [
        {**call, "function": {**call["function"], "arguments": _as_text(call["function"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _as_text(function: Mapping[str, Any]) -> str:
    return json.dumps(function["arguments"], ensure_ascii=False)


def has_tool_messages(messages: Iterable[Mapping[str, Any]]) -> bool:
    return any(message["role"] == "tool" or "tool_calls" in message for message in messages)


def without_tools(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with calls and results as text, for a template that does not take tools."""
    found: list[dict[str, Any]] = []
    for message in messages:
        fields = {name: value for name, value in message.items() if name != "tool_calls"}
        if message["role"] == "tool":
            text = f"Result of {message['name']}:\n\n{message['content']}"
            fields = {"role": "user", "content": text}
        functions = [call["function"] for call in message.get("tool_calls", ())]
        calls = [f"I call {function['name']} {_as_text(function)}" for function in functions]
        fields["content"] = "\n\n".join(filter(None, [fields["content"], *calls]))
        if found and found[-1]["role"] == fields["role"]:
            found[-1]["content"] += f"\n\n{fields['content']}"
        else:
            found.append(fields)
    return found
