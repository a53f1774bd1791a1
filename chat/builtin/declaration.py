"""A built-in tool from a function: its parameters are the schema, its docstring the description."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_type_hints

from swiftchat.chat.tools.tool import BUILT_IN, Action, Tool
from swiftchat.errors import UsageError

_TYPES = {str: "string", int: "integer"}


def declared(name: str, function: Callable[..., Action], edited: str, *given: object) -> Tool:
    """Return a tool whose actions a function returns.

    The function takes the values `given`, then its arguments by name: texts and integers, each
    `Annotated` with what it means.
    """
    hints = get_type_hints(function, include_extras=True)
    properties, required = {}, []
    for parameter in list(inspect.signature(function).parameters.values())[len(given) :]:
        hint, meaning = get_args(hints[parameter.name])
        properties[parameter.name] = {"type": _TYPES[hint], "description": meaning}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }

    def prepare(arguments: dict[str, Any]) -> Action:
        # Many models give null for what they leave out.
        found = {argument: value for argument, value in arguments.items() if value is not None}
        _check(name, found, schema)
        return function(*given, **found)

    description = inspect.getdoc(function) or ""
    return Tool(name, BUILT_IN, name, description, schema, prepare, edited)


def _check(name: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Raise `UsageError` for arguments that the function does not take."""
    kinds = {json_name: kind for kind, json_name in _TYPES.items()}
    for argument in schema["required"]:
        if argument not in arguments:
            raise UsageError(f"{name} needs the argument {argument}", "give it")
    for argument, value in arguments.items():
        if argument not in schema["properties"]:
            known = ", ".join(schema["properties"])
            raise UsageError(f"{name} has no argument {argument}; it has {known}", "leave it out")
        kind = schema["properties"][argument]["type"]
        if type(value) is not kinds[kind]:
            raise UsageError(f"the argument {argument} of {name} must be of type {kind}", "")
