"""Messages of a request in the form that chat templates expect."""

from collections.abc import Iterable
from typing import Any

from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.endpoint.requests import ChatMessage, ContentPart, ToolCall
from swiftchat.chat.history.tool_call import arguments_of


def template_messages(messages: Iterable[ChatMessage]) -> list[dict[str, Any]]:
    """Convert messages; raises `ApiError` for images, audio, invalid calls and lost results.

    The role `developer` is that of newer models of OpenAI; templates know it as `system`. The
    result of a tool gets the name of the tool, which only the call has.
    """
    names: dict[str | None, str] = {}
    found = []
    for message in messages:
        names |= {call.id: call.function.name for call in message.tool_calls or ()}
        fields = _fields(message)
        if message.role == "tool":
            if message.tool_call_id not in names:
                text = f"tool_call_id: no call has the id {message.tool_call_id!r:.80}"
                raise ApiError(400, text, None, "messages")
            fields["name"] = names[message.tool_call_id]
        found.append(fields)
    return found


def _fields(message: ChatMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message.content),
    }
    if message.tool_calls:
        fields["tool_calls"] = list(map(_call, message.tool_calls))
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            fields[name] = value
    reasoning = (
        message.reasoning if message.reasoning_content is None else message.reasoning_content
    )
    if reasoning is not None:
        # The tokenizer adds the other names that templates read.
        fields["reasoning"] = reasoning
    return fields


def _text(content: str | list[ContentPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type != "text" or part.text is None:
            raise ApiError(
                400,
                f"content of type {part.type!r:.40} is not supported, only text",
                None,
                "messages",
            )
    return "\n".join(part.text or "" for part in content)


def _call(call: ToolCall) -> dict[str, Any]:
    """Convert a call: templates expect the arguments as an object, OpenAI sends them as text."""
    arguments = arguments_of(call.function.arguments)
    if arguments is None:
        raise ApiError(400, "the arguments of a tool call are not a JSON object", None, "messages")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}
