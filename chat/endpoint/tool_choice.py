"""Which tools an answer may call or must, and the format that follows from that."""

from collections.abc import Mapping
from typing import Any

from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.endpoint.requests import ChatCompletionRequest, refuse
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.model.output_format import OutputFormat, json_schema_format
from swiftchat.chat.model.strict_calls import strict_calls_format
from swiftchat.chat.tools.offer import NO_TOOLS, Offer
from swiftchat.errors import UsageError

_MODES = ("auto", "required")


def offered(body: ChatCompletionRequest) -> Offer:
    """Return what a request offers; raises `ApiError` for a choice that its tools do not allow."""
    tools, choice = body.tools or [], body.tool_choice or "auto"
    is_single = body.parallel_tool_calls is False
    if choice == "none":
        return NO_TOOLS
    if choice in _MODES:
        refuse(choice == "required" and not tools, "tool_choice", "there are no tools to choose")
        return Offer(tools, choice == "required", is_single)
    if isinstance(choice, dict) and choice.get("type") == "function":
        name = _function_name(choice)
        return Offer(_named(tools, [name]), is_required=True, is_single=True)
    allowed = choice.get("allowed_tools") if isinstance(choice, dict) else None
    wanted = allowed.get("tools") if isinstance(allowed, dict) else None
    if isinstance(allowed, dict) and isinstance(wanted, list) and allowed.get("mode") in _MODES:
        chosen = _named(tools, [_function_name(one) for one in wanted])
        return Offer(chosen, allowed["mode"] == "required", is_single)
    text = "tool_choice is auto, none, required, a function, or allowed_tools with a mode"
    raise ApiError(400, text, "unsupported_value", "tool_choice")


def answer_format(
    body: ChatCompletionRequest, offer: Offer, chat_model: ChatModel
) -> OutputFormat | None:
    """Return the format of an answer: that of the request, a call of a tool, or either.

    Calls of strict tools that the model chooses by itself have one too.
    """
    wanted = body.output_format or chat_model.output_format
    is_either = wanted is not None and bool(offer.tools)
    if not (offer.is_required or is_either):
        if not (strict := offer.strict_schemas):
            return wanted
        prompts = chat_model.prompts
        tool_format = prompts.require_tools().tool_format
        return strict_calls_format(strict, tool_format, prompts.free_control_tokens)
    refuse(not offer.schemas, "tools", "tools: none has a function with a name")
    other = None
    if wanted is not None and not offer.is_required:
        other = wanted.schema
        refuse(other is None, "tools", "tools go together with JSON formats only")
    try:
        return json_schema_format(offer.answer_schema(other), has_instruction=False)
    except UsageError:  # what cannot be enforced of the arguments is not
        loose = offer.answer_schema(other, has_types=False)
        return json_schema_format(loose, has_instruction=False)


def _function_name(choice: Any) -> str:
    """Return the name in `{"type": "function", "function": {"name": …}}`, "" without one."""
    function = choice.get("function") if isinstance(choice, dict) else None
    return str(function.get("name", "")) if isinstance(function, dict) else ""


def _named(tools: list[dict[str, Any]], names: list[str]) -> list[Mapping[str, Any]]:
    """Return the tools with these names; raises `ApiError` if one is missing."""
    by_name = {_function_name(tool): tool for tool in tools}
    missing = [name for name in names if name not in by_name]
    refuse(bool(missing), "tool_choice", f"tool_choice: there is no tool {missing[:1]}")
    refuse(not names, "tool_choice", "tool_choice: there are no tools to choose")
    return [by_name[name] for name in names]
