"""Calls and results of tools in the messages for a chat template."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from swiftchat.chat.history.tool_call import ToolCall, parse_tool_calls
from swiftchat.chat.tools.formats import ToolFormat

Message = Mapping[str, Any]


def has_tool_messages(messages: Iterable[Message]) -> bool:
    return any(message["role"] == "tool" or "tool_calls" in message for message in messages)


def with_text_arguments(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return messages with the arguments of calls as JSON text."""
    return [
        {**message, "tool_calls": list(map(_with_text, message["tool_calls"]))}
        if "tool_calls" in message
        else dict(message)
        for message in messages
    ]


def with_calls_in_content(
    messages: Iterable[Message], tool_format: ToolFormat
) -> list[dict[str, Any]]:
    """Return messages with calls at the end of the content, as the model writes them.

    The format needs `write`. Its markers may be control tokens; the calls between them may not.
    """
    # Imported here, because it would delay the prompt.
    from swiftchat.tokenizer.template.own_text import join_texts, joined, own

    assert tool_format.write is not None
    begin, end = own(tool_format.opens[0]), own(tool_format.close)
    found = []
    for message in messages:
        fields = {name: value for name, value in message.items() if name != "tool_calls"}
        if calls := parse_tool_calls(message.get("tool_calls")):
            written = [join_texts((begin, text, end)) for text in tool_format.write(calls)]
            fields["content"] = joined("\n", filter(None, (message["content"], *written)))
        found.append(fields)
    return found


def with_listed_tools(
    messages: Iterable[Message], tools: Iterable[Message], tool_format: ToolFormat
) -> list[dict[str, Any]]:
    """Return messages with the tools listed in the system message, as the format does it.

    The text around the list may have control tokens.
    """
    # Imported here, because it would delay the prompt.
    from swiftchat.tokenizer.template.own_text import join_texts, joined, own

    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    before, _, after = tool_format.listing.partition("TOOLS")
    text = join_texts((own(before), lines, own(after)))
    found = list(map(dict, messages))
    if found and found[0]["role"] == "system":
        return [{**found[0], "content": joined("\n\n", (found[0]["content"], text))}, *found[1:]]
    return [{"role": "system", "content": text}, *found]


def with_results_in_calls(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return messages with the results of calls in the field `tool_responses` of their message.

    An answer after the results belongs to this message too. So the first templates of Gemma 4.
    """
    found: list[dict[str, Any]] = []
    for message in messages:
        last = found[-1] if found else {}
        if message["role"] == "tool" and "tool_calls" in last:
            result = {"name": message.get("name"), "response": message["content"]}
            last["tool_responses"] = [*last.get("tool_responses", ()), result]
        elif _is_answer(message) and "tool_responses" in last:
            last["content"] = "\n".join(filter(None, (last["content"], message["content"])))
        else:
            found.append(dict(message))
    return found


def requesting_answer(messages: Iterable[Message], name: str) -> list[Message]:
    """Return messages that end with the call `name`, after which the model answers without tools.

    See `is_answer_requested`.
    """
    call = ToolCall(name, {})
    function = {"name": call.name, "arguments": call.arguments}
    calls = [{"id": call.id, "type": "function", "function": function}]
    return [*messages, {"role": "assistant", "content": "", "tool_calls": calls}]


def is_answer_requested(messages: Sequence[Message], name: str) -> bool:
    calls = parse_tool_calls(messages[-1].get("tool_calls")) if messages and name else []
    return [call.name for call in calls] == [name]


def without_tools(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with calls and results as text, for a template that does not take tools."""
    found: list[dict[str, Any]] = []
    for message in messages:
        fields = {name: value for name, value in message.items() if name != "tool_calls"}
        if message["role"] == "tool":
            text = f"Result of {message['name']}:\n\n{message['content']}"
            fields = {"role": "user", "content": text}
        functions = [call["function"] for call in message.get("tool_calls", ())]
        calls = [f"I call {function['name']} {_arguments_text(function)}" for function in functions]
        fields["content"] = "\n\n".join(filter(None, [fields["content"], *calls]))
        if found and found[-1]["role"] == fields["role"]:
            found[-1]["content"] += f"\n\n{fields['content']}"
        else:
            found.append(fields)
    return found


def _is_answer(message: Message) -> bool:
    return message["role"] == "assistant" and "tool_calls" not in message


def _with_text(call: Message) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": _arguments_text(function)}}


def _arguments_text(function: Message) -> str:
    return json.dumps(function["arguments"], ensure_ascii=False)
