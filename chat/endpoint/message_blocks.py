"""Content blocks of `/v1/messages`, and the messages of a chat that they become."""

import json
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from swiftchat.chat.endpoint.body import validated
from swiftchat.chat.endpoint.errors import ApiError


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class Text(_Fields):
    text: str


class Thinking(_Fields):
    thinking: str


class RedactedThinking(_Fields):
    """The reasoning of another server, which only that one can read."""


class ToolUse(_Fields):
    id: str
    name: str
    input: dict[str, Any]

    @property
    def for_chat(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": json.dumps(self.input)}
        return {"id": self.id, "type": "function", "function": function}


class ToolResult(_Fields):
    tool_use_id: str
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None


Block = Text | Thinking | RedactedThinking | ToolUse | ToolResult
_RESULT_KINDS: dict[str, type[Block]] = {"text": Text}
# By the role of the message.
_KINDS: dict[str, dict[str, type[Block]]] = {
    "system": _RESULT_KINDS,
    "user": {"text": Text, "tool_result": ToolResult},
    "assistant": {
        "text": Text,
        "thinking": Thinking,
        "redacted_thinking": RedactedThinking,
        "tool_use": ToolUse,
    },
}


class Message(_Fields):
    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


def chat_messages(
    system: str | list[dict[str, Any]] | None, messages: Iterable[Message]
) -> list[dict[str, Any]]:
    """Return the messages that a conversation becomes; raises `ApiError` for other blocks."""
    found = []
    if system:
        blocks = _blocks(system, _KINDS["system"], "system")
        found.append({"role": "system", "content": _texts(blocks)})
    for number, message in enumerate(messages):
        blocks = _blocks(message.content, _KINDS[message.role], f"messages.{number}.content")
        if message.role == "assistant":
            found.append(_answer(blocks))
        else:
            found += _results_and_texts(message.role, blocks)
    return found


def _blocks(
    content: str | list[dict[str, Any]], kinds: dict[str, type[Block]], place: str
) -> list[Block]:
    if isinstance(content, str):
        return [Text(text=content)]
    blocks = []
    for number, block in enumerate(content):
        kind = block.get("type")
        if not isinstance(kind, str) or kind not in kinds:
            param = f"{place}.{number}"
            known = ", ".join(kinds)
            message = f"{param}: content of type {kind!r:.40} is not supported here, only {known}"
            raise ApiError(400, message, "unsupported_value", param)
        blocks.append(validated(kinds[kind], block, f"{place}.{number}"))
    return blocks


def _texts(blocks: Iterable[Block]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": block.text} for block in blocks if isinstance(block, Text)]


def _answer(blocks: list[Block]) -> dict[str, Any]:
    answer: dict[str, Any] = {"role": "assistant", "content": _texts(blocks)}
    if thoughts := [block.thinking for block in blocks if isinstance(block, Thinking)]:
        answer["reasoning_content"] = "\n".join(thoughts)
    if calls := [block.for_chat for block in blocks if isinstance(block, ToolUse)]:
        answer["tool_calls"] = calls
    return answer


def _results_and_texts(role: str, blocks: list[Block]) -> list[dict[str, Any]]:
    """Return the messages of results, and those of the texts between them, in their order."""
    found: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, ToolResult):
            found.append(_result(block))
        elif found and found[-1]["role"] == role:
            found[-1]["content"] += _texts([block])
        else:
            found.append({"role": role, "content": _texts([block])})
    return found or [{"role": role, "content": ""}]


def _result(block: ToolResult) -> dict[str, Any]:
    place = f"the content of the result {block.tool_use_id!r:.80}"
    blocks = _blocks(block.content or "", _RESULT_KINDS, place)
    text = "\n".join(block.text for block in blocks if isinstance(block, Text))
    content = f"Error: {text}" if block.is_error else text
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
