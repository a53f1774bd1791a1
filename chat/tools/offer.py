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

    @property
    def strict_schemas(self) -> dict[str, Mapping[str, Any]]:
        """The schemas of the arguments of tools that ask for valid ones, by name."""
        functions = [tool.get("function") for tool in self.tools]
        strict = [
            one for one in functions if isinstance(one, Mapping) and one.get("strict") is True
        ]
        return {str(one.get("name")): _parameters(one.get("parameters")) for one in strict}

    def answer_schema(
        self, other: Mapping[str, Any] | None = None, *, has_types: bool = True
    ) -> dict[str, Any]:
        """Return the JSON schema of an answer that calls tools, or that matches `other`.

        Without `has_types` the arguments are any objects.
        """
        parameters = [_parameters(one) if has_types else _ANY for one in self.schemas.values()]
        definitions = {f"tool{i}": schema for i, schema in enumerate(parameters)}
        calls = [_call(name, i) for i, name in enumerate(self.schemas)]
        several = {"type": "array", "items": {"anyOf": calls}, "minItems": 1}
        choices = [*calls] if self.is_single else [*calls, several]
        if other is not None:
            definitions["answer"] = other
            choices.append({"$ref": "#/$defs/answer"})
        return {
            "anyOf": choices,
            "$defs": {name: _moved(one, name) for name, one in definitions.items()},
        }


NO_TOOLS = Offer()


def _parameters(schema: object) -> Mapping[str, Any]:
    """Return a schema of parameters as one of objects."""
    return {"type": "object", **schema} if isinstance(schema, Mapping) else _NO_ARGUMENTS


def _call(name: str, number: int) -> dict[str, Any]:
    arguments = {"$ref": f"#/$defs/tool{number}"}
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(value: Any, name: str) -> Any:
    """Return a schema whose references are right if it is the definition `name` of another."""
    if isinstance(value, list):
        return [_moved(part, name) for part in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: f"#/$defs/{name}{part[1:]}"
        if key == "$ref" and isinstance(part, str) and part.startswith("#")
        else _moved(part, name)
        for key, part in value.items()
    }
