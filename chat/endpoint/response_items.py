"""Items of `/v1/responses`: what they are, and the messages of a chat that they become."""

import uuid
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from swiftchat.chat.endpoint.body import validated
from swiftchat.chat.endpoint.errors import ApiError

# Content of these types is text; any other one is refused with its name.
_TEXT_TYPES = {"input_text", "output_text", "reasoning_text", "summary_text"}
Status = Literal["in_progress", "completed", "incomplete"]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class Content(_Fields):
    type: str
    text: str | None = None

    @property
    def for_chat(self) -> dict[str, Any]:
        return {"type": "text" if self.type in _TEXT_TYPES else self.type, "text": self.text}


class Item(_Fields):
    """An item of any type; its id is made if it has none."""

    PREFIX: ClassVar[str]

    type: str
    id: str | None = None
    status: Status | None = None

    def as_object(self) -> dict[str, Any]:
        """Return the item as it is stored and listed."""
        made = {"id": self.id or new_id(self.PREFIX), "status": self.status or "completed"}
        return {**self.model_dump(exclude_none=True), **made}


class Message(Item):
    PREFIX = "msg"

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Content]

    def as_object(self) -> dict[str, Any]:
        is_answer = self.role == "assistant"
        kind = "output_text" if is_answer else "input_text"
        more: dict[str, Any] = {"annotations": []} if is_answer else {}
        texts = (
            [Content(type=kind, text=self.content)]
            if isinstance(self.content, str)
            else self.content
        )
        listed = [{"type": one.type, "text": one.text, **more} for one in texts]
        return {**super().as_object(), "content": listed}


class FunctionCall(Item):
    PREFIX = "fc"

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionCallOutput(Item):
    PREFIX = "fco"

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[Content]


class Reasoning(Item):
    """The reasoning of an answer; `summary` is read if there is no content."""

    PREFIX = "rs"

    type: Literal["reasoning"]
    summary: list[Content] = []
    content: list[Content] | None = None


_KINDS: dict[str, type[Item]] = {
    "message": Message,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "reasoning": Reasoning,
}


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def parsed_items(value: str | list[dict[str, Any]]) -> list[Item]:
    """Return the items of an input; raises `ApiError` for items of other types."""
    if isinstance(value, str):
        return [Message(role="user", content=value)]
    found = []
    for number, item in enumerate(value):
        kind = item.get("type", "message")
        if not isinstance(kind, str) or kind not in _KINDS:
            message = f"input: items of type {kind!r:.40} are not supported"
            raise ApiError(400, message, "unsupported_value", "input")
        found.append(validated(_KINDS[kind], item, f"input.{number}"))
    return found


def chat_messages(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Return the messages that items become.

    What the model has written between two other messages is one message: its reasoning, texts and
    calls. A call that was cut off is left out.
    """
    messages: list[dict[str, Any]] = []
    answer: dict[str, Any] | None = None
    for item in items:
        is_answer = isinstance(item, FunctionCall | Reasoning) or (
            isinstance(item, Message) and item.role == "assistant"
        )
        if not is_answer:
            answer = None
            messages.append(_message(item))
            continue
        if answer is None:
            answer = {"role": "assistant", "content": []}
            messages.append(answer)
        _add_to_answer(answer, item)
    return messages


def _message(item: Item) -> dict[str, Any]:
    if isinstance(item, FunctionCallOutput):
        content = _content(item.output)
        return {"role": "tool", "tool_call_id": item.call_id, "content": content}
    assert isinstance(item, Message)
    return {"role": item.role, "content": _content(item.content)}


def _add_to_answer(answer: dict[str, Any], item: Item) -> None:
    match item:
        case Message():
            answer["content"] += _content(item.content)
        case Reasoning():
            parts = item.content or item.summary
            texts = [answer.get("reasoning_content", ""), *(part.text or "" for part in parts)]
            answer["reasoning_content"] = "\n".join(filter(None, texts))
        case FunctionCall() if item.status != "incomplete":
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            answer.setdefault("tool_calls", []).append(call)


def _content(content: str | list[Content]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part.for_chat for part in content]
