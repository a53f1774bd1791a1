"""The requests of `/v1/messages` and of its count of tokens, in the words of a chat completion."""

from typing import Any, Literal

from pydantic import Field

from swiftchat.chat.endpoint.errors import NO_THREADS, ApiError
from swiftchat.chat.endpoint.fields import FieldTable
from swiftchat.chat.endpoint.message_blocks import Message, chat_messages
from swiftchat.chat.endpoint.requests import Whole, refuse
from swiftchat.chat.endpoint.translated_request import StrictFields, TranslatedRequest

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}

_TABLE = FieldTable(
    refused={
        "container": "there is none",
        "mcp_servers": "offer their tools",
        "context_management": "send the messages that the model shall read",
        "compaction": "send the messages that the model shall read",
        "fallbacks": "name one model",
        "fallback_credit_token": "name one model",
        "prefill": "send the beginning of the answer as the last message",
        "max_tokens_to_sample": "use max_tokens",
    },
    defaults={
        "mcp_servers": ([],),
        "fallbacks": ([],),
        # All reasoning stays in the prompt anyway, as far as the template wants it.
        "context_management": (
            {"edits": []},
            {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        ),
    },
    without_effect=(
        *("billing_policy", "cache_control", "diagnostics", "inference_geo", "metadata"),
        *("service_tier", "speed", "user_profile_id", "workspace_id"),
    ),
)

_NAMES = {
    "tool_call_id": "tool_use_id",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "reasoning_budget": "thinking.budget_tokens",
}


class Thinking(StrictFields):
    """Without `budget_tokens` the reasoning is as long as the model wants."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Whole | None = Field(default=None, ge=0)
    display: Literal["summarized", "omitted"] | None = None


class ToolChoice(StrictFields):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(StrictFields):
    effort: str | None = None
    format: dict[str, Any] | None = None


class CountRequest(TranslatedRequest):
    """The fields that make a prompt."""

    TABLE, NAMES = _TABLE, _NAMES

    messages: list[Message] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None  # an older name
    thread: dict[str, Any] | None = None

    @property
    def omits_thinking(self) -> bool:
        """Whether the thinking blocks of the answer are empty."""
        return self.thinking is not None and self.thinking.display == "omitted"

    def fields(self) -> dict[str, Any]:
        if self.thread is not None:
            text = "thread is not supported: send all messages"
            raise ApiError(400, text, NO_THREADS, "thread")
        choice, output = self.tool_choice, self.output_config or OutputConfig()
        is_single = choice is not None and choice.disable_parallel_tool_use
        return {
            "messages": chat_messages(self.system, self.messages),
            "tools": None if self.tools is None else list(map(_chat_tool, self.tools)),
            "tool_choice": None if choice is None else _chat_choice(choice),
            "parallel_tool_calls": False if is_single else None,
            "response_format": output.format or self.output_format,
            **self._reasoning(output.effort),
        }

    def _reasoning(self, effort: str | None) -> dict[str, Any]:
        if self.thinking is None:
            return {"reasoning_effort": effort}
        if self.thinking.type == "disabled":
            return {"reasoning_effort": "none"}
        return {"reasoning_effort": effort, "reasoning_budget": self.thinking.budget_tokens}


class MessageRequest(CountRequest):
    max_tokens: Whole = Field(ge=1)
    stop_sequences: list[str] | None = None

    def fields(self) -> dict[str, Any]:
        return {
            **super().fields(),
            "max_tokens": self.max_tokens,
            "stop": self.stop_sequences,
        }


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    kind, name = tool.get("type") or "custom", tool.get("name")
    if kind != "custom":
        message = f"tools: tools of type {kind!r:.40} are not supported, only those with a schema"
        raise ApiError(400, message, "unsupported_value", "tools")
    refuse(not isinstance(name, str) or not name, "tools", "tools: a tool has no name")
    schema = tool.get("input_schema")
    refuse(not isinstance(schema, dict), "tools", f"tools: {name!r:.80} has no input_schema")
    names = ("name", "description", "strict")
    function = {key: tool[key] for key in names if tool.get(key) is not None}
    return {"type": "function", "function": {**function, "parameters": schema}}


def _chat_choice(choice: ToolChoice) -> str | dict[str, Any]:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return _CHOICES[choice.type]
