"""How a chat template takes tools, calls and results: found by rendering small conversations."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from swiftchat.chat.model.tool_messages import (
    with_calls_in_content,
    with_listed_tools,
    with_results_in_calls,
    with_text_arguments,
)
from swiftchat.chat.tools.derived_format import derive_tool_format
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
# What templates call the tools.
_VARIABLES = ("tools", "xml_tools", "functions")


Adapt = Callable[[Iterable[Mapping[str, Any]]], list[dict[str, Any]]]


def _unchanged(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return list(map(dict, messages))


@dataclass(frozen=True)
class ToolSupport:
    """How a template takes tools, calls and results.

    `source` is the template, `tool_format` the format of its calls, and `variable` what it calls
    the tools, None if it does not list any. `adapt` gives messages the form in which it shows calls
    and results.
    """

    source: str
    tool_format: ToolFormat
    variable: str | None = "tools"
    adapt: Adapt = _unchanged

    def variables(self, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the variables of the template for these tools."""
        return {"tools": list(tools), **_tool_variables(self.variable or "tools", tools)}

    def messages(
        self, messages: Iterable[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return messages as the template takes them."""
        adapted = self.adapt(messages)
        if self.variable is not None or not tools:
            return adapted
        return with_listed_tools(adapted, tools, self.tool_format)


def find_tool_support(tokenizer: "Tokenizer", source: str | None) -> ToolSupport | None:
    """Return how a template takes tools, None if it does not, or if its calls are not known.

    `source` None means the model's own templates, of which `tool_use` comes first. The template
    must list the tools, or be of a family for which swiftchat does, and show results. The format of
    calls is known by a text of the template, or derived from the call that it has written.
    """
    text = source or tokenizer.templates.get("tool_use") or tokenizer.templates.get("default")
    if text is None:
        return None
    variable = next((name for name in _VARIABLES if _lists_tools(tokenizer, text, name)), None)
    tool_format = find_tool_format(text)
    if variable is None and (tool_format is None or not tool_format.listing):
        return None
    tool_format = tool_format or _derived_format(tokenizer, text)
    if tool_format is None:
        return None
    for adapt in _adaptations(text, tool_format):
        support = ToolSupport(text, tool_format, variable, adapt)
        messages = support.messages(_example(), [_TOOL])
        shown = _rendered(tokenizer, text, messages, support.variables([_TOOL]))
        if _RESULT in shown and _ARGUMENT in shown:
            return support
    return None


def _adaptations(source: str, tool_format: ToolFormat) -> Iterator[Adapt]:
    """Yield what may have to be done to messages, most special first."""
    if "'tool_responses'" in source and "'tool_call_id'" not in source:
        yield with_results_in_calls
    yield _unchanged
    yield with_text_arguments
    if tool_format.write is not None:
        yield partial(with_calls_in_content, tool_format=tool_format)


def _lists_tools(tokenizer: "Tokenizer", source: str, variable: str) -> bool:
    variables = _tool_variables(variable, [_TOOL])
    return _NAME in _rendered(tokenizer, source, [_QUESTION], variables)


def _tool_variables(name: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the variables of a template that calls the tools `name`."""
    if name != "functions":
        return {name: list(tools)}
    # Firefunction takes JSON, and the time. The day is enough: prompts begin alike all day.
    functions = [tool.get("function", tool) for tool in tools]
    text = json.dumps(functions, indent=4, ensure_ascii=False)
    return {name: text, "datetime": f"{datetime.now():%b %d %Y}"}


def _derived_format(tokenizer: "Tokenizer", source: str) -> ToolFormat | None:
    # The tools are left out: their list would have the name too.
    answer = {"role": "assistant", "content": _ARGUMENT}
    plain = _rendered(tokenizer, source, [_QUESTION, answer], {})
    for messages in (_example(), with_text_arguments(_example())):
        shown = _rendered(tokenizer, source, messages, {})
        if found := derive_tool_format(shown, plain, _NAME, _ARGUMENT):
            return found
    return None


def _example() -> list[dict[str, Any]]:
    function = {"name": _NAME, "arguments": {"word": _ARGUMENT}}
    call = {"id": _CALL_ID, "type": "function", "function": function}
    return [
        _QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": _CALL_ID, "name": _NAME, "content": _RESULT},
    ]


def _rendered(
    tokenizer: "Tokenizer",
    source: str,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
) -> str:
    """Return the text of a prompt, "" if the template rejects it."""
    try:
        prompt = tokenizer.prompt(messages, template=source, **variables)
    except BadModelFile:
        return ""
    return "".join(span.text for span in prompt.spans)
