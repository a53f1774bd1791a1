"""The tools that an answer may call, or must."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ANY = {"type": "object"}
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Offer:
    """Tools as OpenAI describes them. An answer that `is_required` to call one is nothing else.

    With `is_single` it ends with its first call.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    is_required: bool = False
    is_single: bool = False

    @property
    def schemas(self) -> dict[str, Any]:
        """The schemas of the parameters, by name; None for a tool that does not have any."""
        tools = [found for tool in self.tools if isinstance(found := tool.get("function"), Mapping)]
        return {str(tool.get("name")): tool.get("parameters") for tool in tools}

    def answer_schema(
        self, other: Mapping[str, Any] | None = None, *, has_types: bool = True
    ) -> dict[str, Any]:
        """Return the JSON schema of an answer that calls tools, or that matches `other`.

        Without `has_types` the arguments are any objects.
        """
        parameters = [schema if has_types else _ANY for schema in self.schemas.values()]
        definitions = {f"tool{i}": schema for i, schema in enumerate(parameters)}
        calls = [_call(name, i) for i, name in enumerate(self.schemas)]
        several = {"type": "array", "items": {"anyOf": calls}, "minItems": 1}
        choices = calls if self.is_single else [*calls, several]
        if other is not None:
            definitions["answer"] = other
            choices.append({"$ref": "#/$defs/answer"})
        return {
            "anyOf": choices,
            "$defs": {name: _moved(one, name) for name, one in definitions.items()},
        }


NO_TOOLS = Offer()


def _call(name: str, number: int) -> dict[str, Any]:
    arguments = {"$ref": f"#/$defs/tool{number}"}
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, name: str) -> Any:
    """Return a schema whose references are right if it is the definition `name` of another."""
    if schema is None:
        return _NO_ARGUMENTS
    if isinstance(schema, list):
        return [_moved(one, name) if one is not None else None for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: f"#/$defs/{name}{value[1:]}"
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, name)
        if isinstance(value, Mapping | list)
        else value
        for key, value in schema.items()
    }
