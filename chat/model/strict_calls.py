"""The format of an answer whose calls have arguments of their tool's schema, wherever they are."""

import json
import re
from collections.abc import Collection, Mapping
from itertools import groupby
from typing import Any

from swiftchat.chat.model.output_format import OutputFormat, json_schema_format
from swiftchat.chat.tools.formats import ToolFormat
from swiftchat.errors import UsageError

_ANY = {"type": "object"}
_COMMON = (
    r'BETWEEN: /\s*,\s*"(arguments|parameters|args)"\s*:\s*/',
    r"SPACE: /\s*/",
    r"WORD: /[ \w-]{0,40}/",
    "TEXT: /(?s:.*)/",
)


def strict_calls_format(
    schemas: Mapping[str, Mapping[str, Any]], tool_format: ToolFormat, control: Mapping[str, int]
) -> OutputFormat:
    """Return the format of texts that call tools with arguments of their schemas, by name.

    A call is JSON in which the name of the tool precedes the arguments, or what `tool_format` says
    precedes them. All other text is free, with the tokens `control`, ids by text. What cannot be
    enforced of a schema is not.
    """
    mark = control.get(tool_format.named_mark)
    is_marked = bool(tool_format.named) and mark is not None
    calls = [f"call{i}" for i in range(len(schemas))]
    names = [tool_format.named.replace("NAME", _literal(name)) for name in schemas]
    rules = [f"start: ({' | '.join(calls)}{' | FREE mark' if control else ''})* TEXT", *_COMMON]
    if control:
        rules.append(f"mark: <[{_ranges(control.values())}]>")
    # Text before a control token, but for what makes that begin the arguments of a call.
    other = f" & ~/{'|'.join(names)}/" if is_marked else ""
    rules.append(f"FREE: /(?s:.*)/{other}")
    for call, name, named, schema in zip(calls, schemas, names, schemas.values(), strict=True):
        heads = [f"{call}_json BETWEEN"]
        written = _literal(json.dumps(name, ensure_ascii=False))
        # Lazy: it ends at the name, before the text around it can go on.
        rules.append(rf'{call}_json[lazy]: /(?s:.*)"(tool_)?name"\s*:\s*{written}/')
        if is_marked:
            inner = [i for i in control.values() if i != mark]
            words = f"(<[{_ranges(inner)}]> WORD)* " if inner else ""
            heads.append(f"NAMED{call[4:]} {words}<[{mark}]> SPACE")
            rules.append(f"NAMED{call[4:]}: /{named}/")
        elif tool_format.named and not tool_format.named_mark:
            heads.append(f"{call}_named SPACE")
            rules.append(f"{call}_named[lazy]: /(?s:.*){named}/")
        rules.append(f"{call}: ({' | '.join(heads)}) %json {json.dumps(_enforced(schema))}")
    return OutputFormat("strict calls", {"lark_grammar": "\n".join(rules)})


def _literal(text: str) -> str:
    """Return a regular expression of Lark for a text."""
    return re.escape(text).replace("/", r"\/")


def _ranges(ids: Collection[int]) -> str:
    """Return ids as ranges of Lark: `1-3,7`."""
    groups = groupby(enumerate(sorted({*ids})), key=lambda pair: pair[1] - pair[0])
    runs = [[token_id for _, token_id in group] for _, group in groups]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _enforced(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema as llguidance takes it, that of any object if it cannot be enforced."""
    try:
        found = json_schema_format(schema, has_instruction=False)
    except UsageError:
        found = json_schema_format(_ANY, has_instruction=False)
    enforced: Mapping[str, Any] = found.grammar["json_schema"]
    return enforced
