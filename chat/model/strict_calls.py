"""The format of an answer whose calls have arguments of their tool's schema, wherever they are."""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from swiftchat.chat.model.output_format import OutputFormat, json_schema_format
from swiftchat.errors import UsageError

_ANY = {"type": "object"}


def strict_calls_format(
    schemas: Mapping[str, Mapping[str, Any]], marks: Collection[int]
) -> OutputFormat:
    """Return the format of texts that call tools with arguments of their schemas, by name.

    Whatever is around it, a call is JSON in which the name of the tool precedes the arguments. All
    other text is free, with the control tokens `marks`. What cannot be enforced of a schema is not.
    """
    calls = [f"call{i}" for i in range(len(schemas))]
    free = f"(TEXT ({' | '.join(f'<[{i}]>' for i in marks)}))" if marks else ""
    rules = [
        f"start: ({' | '.join(filter(None, (*calls, free)))})* TEXT",
        r'BETWEEN: /\s*,\s*"(arguments|parameters|args)"\s*:\s*/',
        "TEXT: /(?s:.*)/",
    ]
    for call, (name, schema) in zip(calls, schemas.items(), strict=True):
        written = re.escape(json.dumps(name, ensure_ascii=False)).replace("/", r"\/")
        rules += [
            f"{call}: {call}_head BETWEEN %json {json.dumps(_enforced(schema))}",
            # Lazy: it ends at the name, before the text around it can go on.
            rf'{call}_head[lazy]: /(?s:.*)"(tool_)?name"\s*:\s*{written}/',
        ]
    return OutputFormat("strict calls", {"lark_grammar": "\n".join(rules)})


def _enforced(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema as llguidance takes it, that of any object if it cannot be enforced."""
    try:
        found = json_schema_format(schema, has_instruction=False)
    except UsageError:
        found = json_schema_format(_ANY, has_instruction=False)
    enforced: Mapping[str, Any] = found.grammar["json_schema"]
    return enforced
