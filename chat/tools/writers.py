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


def _json_object(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def _python_call(call: ToolCall) -> str:
    values = (f"{name}={value!r}" for name, value in call.arguments.items())
    return f"{call.name}({', '.join(values)})"
