"""Texts between the markers of a tool call, for templates that leave calls out."""

import json
from collections.abc import Sequence

from swiftchat.chat.history.tool_call import ToolCall


def write_json(calls: Sequence[ToolCall]) -> list[str]:
    """Return one list of JSON objects with names and arguments."""
    return [f"[{', '.join(map(_json_object, calls))}]"]


def write_objects(calls: Sequence[ToolCall]) -> list[str]:
    """Return a JSON object for each call."""
    return [f"\n{_json_object(call)}\n" for call in calls]


def write_python(calls: Sequence[ToolCall]) -> list[str]:
    """Return one list of Python calls."""
    return [f"[{', '.join(map(_python_call, calls))}]"]


def write_deepseek(calls: Sequence[ToolCall]) -> list[str]:
    """Return the calls of DeepSeek R1; the marks around each are the template's own text."""
    # Imported here, because it would delay the prompt.
    from swiftchat.tokenizer.template.own_text import join_texts, joined, own

    begin = own("<｜tool▁call▁begin｜>function<｜tool▁sep｜>")
    end = own("<｜tool▁call▁end｜>")
    texts = (
        f"{call.name}\n```json\n{json.dumps(call.arguments, ensure_ascii=False)}\n```"
        for call in calls
    )
    return [joined("\n", (join_texts((begin, text, end)) for text in texts))]


def _json_object(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def _python_call(call: ToolCall) -> str:
    values = (f"{name}={value!r}" for name, value in call.arguments.items())
    return f"{call.name}({', '.join(values)})"
