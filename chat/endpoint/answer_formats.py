"""The format that a request asks for, in OpenAI's words or those of vLLM and llama.cpp."""

from collections.abc import Callable, Mapping
from typing import Any

from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.history.tool_call import is_shallow
from swiftchat.chat.model.output_format import (
    OutputFormat,
    choice_format,
    grammar_format,
    json_object_format,
    json_schema_format,
    parsed_schema,
    regex_format,
)
from swiftchat.errors import UsageError


def _schema(value: Any) -> OutputFormat:
    schema = parsed_schema(value, "the schema") if isinstance(value, str) else value
    if not isinstance(schema, dict):
        raise UsageError("the schema is not a JSON object")
    if not is_shallow(schema):
        raise UsageError("the schema is nested too deeply")
    # As in OpenAI's API, the messages ask for the format.
    return json_schema_format(schema, has_instruction=False)


def _text(make: Callable[[str], OutputFormat]) -> Callable[[Any], OutputFormat]:
    def check(value: Any) -> OutputFormat:
        if not isinstance(value, str):
            raise UsageError("it is not a text")
        return make(value)

    return check


def _choice(value: Any) -> OutputFormat:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise UsageError("it is not a list of texts")
    return choice_format(value)


def _structured(value: Any) -> OutputFormat:
    names = [name for name in _STRUCTURED if isinstance(value, dict) and value.get(name)]
    if len(names) != 1 or any(value[name] for name in value.keys() - {*names}):
        raise UsageError(f"it has one of {', '.join(_STRUCTURED)}")
    return _STRUCTURED[names[0]](value[names[0]])


def _response_format(value: Any) -> OutputFormat | None:
    kind = value.get("type") if isinstance(value, dict) else None
    match kind:
        case "text":
            return None
        case "json_object":
            schema = value.get("schema")  # of llama.cpp
            return json_object_format() if schema is None else _schema(schema)
        case "json_schema":
            found = value.get("json_schema")
            nested = isinstance(found, Mapping) and "schema" in found
            schema = found["schema"] if nested else value.get("schema")
            if not isinstance(schema, dict):
                raise UsageError("it has no json_schema with a schema")
            return _schema(schema)
    raise UsageError("its type is text, json_object or json_schema")


_STRUCTURED: dict[str, Callable[[Any], OutputFormat]] = {
    "json": _schema,
    "regex": _text(regex_format),
    "choice": _choice,
    "grammar": _text(grammar_format),
    "json_object": lambda value: json_object_format(),
}
# By the fields of requests.
FORMATS: dict[str, Callable[[Any], OutputFormat | None]] = {
    "response_format": _response_format,
    "json_schema": _schema,
    "grammar": _text(grammar_format),
    "guided_json": _schema,
    "guided_regex": _text(regex_format),
    "guided_choice": _choice,
    "guided_grammar": _text(grammar_format),
    "structured_outputs": _structured,
}


def wanted_format(given: Mapping[str, Any]) -> OutputFormat | None:
    """Return the format that the fields of a request ask for.

    Raises `ApiError` for several fields, and for what cannot be enforced.
    """
    found: OutputFormat | None = None
    for name, make in FORMATS.items():
        if given.get(name) in (None, ""):
            continue
        try:
            form = make(given[name])
        except UsageError as error:
            raise ApiError(400, f"{name}: {error.message}", "invalid_value", name) from None
        if form is not None and found is not None:
            raise ApiError(400, f"{name}: another field has a format", "invalid_value", name)
        found = form or found
    return found
