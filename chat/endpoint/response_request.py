"""The request of `/v1/responses`, in the words of a chat completion."""

from typing import Any, Literal

from pydantic import Field, PrivateAttr

from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.endpoint.fields import FieldTable
from swiftchat.chat.endpoint.requests import Whole, refuse
from swiftchat.chat.endpoint.response_items import chat_messages, parsed_items
from swiftchat.chat.endpoint.response_store import StoredResponses
from swiftchat.chat.endpoint.translated_request import StrictFields, TranslatedRequest

_LOGPROBS = "message.output_text.logprobs"
_OVERFLOWS = {"auto": "drop-oldest", "disabled": "error"}
_Summary = Literal["auto", "concise", "detailed", "none"] | None

_TABLE = FieldTable(
    refused={
        "background": "a response comes with its request",
        "background_options": "a response comes with its request",
        "conversation": "use previous_response_id",
        "context_management": "use truncation",
        "prompt": "send its text in input",
        "moderation": "nothing is moderated",
        "image": "the model reads and writes text",
        "max_tokens": "use max_output_tokens",
        "messages": "use input",
        "response_format": "use text.format",
        "reasoning_effort": "use reasoning.effort",
        "personality": "ask for it in instructions",
    },
    defaults={"background": (False,)},
    without_effect=(
        *("access_programs", "client_metadata", "max_tool_calls", "prompt_cache_key"),
        *("prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier"),
        *("stream_options",),
    ),
)

_NAMES = {
    "messages": "input",
    "tool_call_id": "call_id",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "max_tokens": "max_output_tokens",
    "overflow": "truncation",
}


class TextOptions(StrictFields):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class Reasoning(StrictFields):
    """Only the effort has an effect: the reasoning itself is an item, and no summary is needed."""

    effort: str | None = None
    summary: _Summary = None
    generate_summary: _Summary = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Literal["standard"] | None = None


class ResponseRequest(TranslatedRequest):
    TABLE, NAMES = _TABLE, _NAMES

    input: str | list[dict[str, Any]] = Field(min_length=1)
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: Whole | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Whole | None = Field(default=None, ge=0, le=20)
    include: list[str] | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    stop: str | list[str] | None = None
    _input_items: list[dict[str, Any]] = PrivateAttr(default_factory=list)

    def resolve(self, stored: StoredResponses) -> None:
        """Make `input_items` the earlier conversation and the input; raises `ApiError`."""
        earlier = stored.items(self.previous_response_id)
        own = [item.as_object() for item in parsed_items(self._referred(stored))]
        self._input_items = [*earlier, *own]

    @property
    def input_items(self) -> list[dict[str, Any]]:
        """All items before the answer."""
        return self._input_items

    def fields(self) -> dict[str, Any]:
        messages = chat_messages(parsed_items(self.input_items))
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        text = self.text or TextOptions()
        logprobs = self.top_logprobs is not None or _LOGPROBS in (self.include or ())
        truncation = {"overflow": _OVERFLOWS[self.truncation]} if self.truncation else {}
        return {
            **truncation,
            "messages": messages,
            "tools": None if self.tools is None else list(map(_chat_tool, self.tools)),
            "tool_choice": _chat_choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": text.format,
            "verbosity": text.verbosity,
            "reasoning_effort": self.reasoning and self.reasoning.effort,
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "logprobs": logprobs or None,
            "top_logprobs": self.top_logprobs,
            "stop": self.stop,
        }

    def _referred(self, stored: StoredResponses) -> str | list[dict[str, Any]]:
        """Return the input with the items that it only refers to."""
        if isinstance(self.input, str):
            return self.input
        return [
            stored.item(item.get("id")) if item.get("type") == "item_reference" else item
            for item in self.input
        ]


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    kind, name = tool.get("type"), tool.get("name")
    if kind != "function":
        message = f"tools: tools of type {kind!r:.40} are not supported, only function"
        raise ApiError(400, message, "unsupported_value", "tools")
    refuse(not isinstance(name, str) or not name, "tools", "tools: a function has no name")
    names = ("name", "description", "parameters", "strict")
    function = {key: tool[key] for key in names if tool.get(key) is not None}
    return {"type": "function", "function": function}


def _chat_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if not isinstance(choice, dict):
        return choice
    match choice.get("type"):
        case "function":
            return _named(choice)
        case "allowed_tools":
            listed = choice.get("tools")
            tools = [_named(one) for one in listed] if isinstance(listed, list) else listed
            allowed = {"mode": choice.get("mode"), "tools": tools}
            return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def _named(tool: Any) -> dict[str, Any]:
    name = tool.get("name") if isinstance(tool, dict) else None
    return {"type": "function", "function": {"name": name}}
