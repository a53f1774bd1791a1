"""The format that answers must have: from options to a grammar in llguidance's JSON."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swiftchat.chat.attachments.user_text import text_or_file
from swiftchat.chat.model.gbnf import gbnf_to_lark
from swiftchat.chat.model.json_schema import bounded, inner_schemas, simplified
from swiftchat.chat.model.reasoning import ReasoningFormat
from swiftchat.chat.options.config import ChatConfig
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    from swiftchat.tokenizer import Prompt

Messages = Sequence[Mapping[str, Any]]
Encode = Callable[[Messages], "Prompt"]

# Between the tokens of JSON: nothing, a blank, or a new line with indentation. Without a bound
# some models write blanks forever.
_WHITESPACE = r"( |\n {0,24})?"
_LARK = re.compile(r"^\s*(%llguidance\b|start\s*:(?!:=))", re.MULTILINE)
_ANSWER = "answer"  # the name of the grammar of the answer in that of the whole output

_DEFINITIONS = ("$defs", "definitions")
_MAX_CHECKED_CHARACTERS = 1 << 26
_MAX_SHOWN = 400  # characters of an error


@dataclass(frozen=True)
class OutputFormat:
    """`name` for the user, the `grammar` of an answer, and the `instruction` for the model.

    The grammar of a JSON `schema` may have fewer documents than the schema; see `bounded`.
    """

    name: str
    grammar: Mapping[str, Any]
    instruction: str = ""
    schema: Mapping[str, Any] | None = None

    @property
    def is_json(self) -> bool:
        """Whether an answer is a JSON document, which matches `schema`."""
        return self.schema is not None

    def instructed(self, encode: Encode) -> Encode:
        """Return `encode` with the instruction in the system prompt."""
        if not self.instruction:
            return encode
        return lambda messages: encode(self._instruct(messages))

    def _instruct(self, messages: Messages) -> Messages:
        first, *rest = messages
        if first["role"] != "system":
            return [{"role": "system", "content": self.instruction}, *messages]
        return [{**first, "content": f"{first['content']}\n\n{self.instruction}"}, *rest]


def chosen_format(config: ChatConfig) -> OutputFormat | None:
    """Return the format of --schema, --json-object, --regex or --grammar, None without them.

    Raises `UsageError` for more than one of them and for what llguidance cannot enforce, and
    `FileSystemError` for a file that cannot be read.
    """
    given = {
        "--schema": config.schema is not None,
        "--json-object": config.json_object,
        "--regex": config.regex is not None,
        "--grammar": config.grammar is not None,
    }
    names = [name for name, is_given in given.items() if is_given]
    if len(names) > 1:
        raise UsageError(f"{names[0]} and {names[1]} were both given", "choose one")
    if config.schema is not None:
        return schema_format(config.schema, has_instruction=not config.no_schema_prompt)
    if config.json_object:
        return json_object_format()
    if config.regex is not None:
        return regex_format(config.regex)
    if config.grammar is not None:
        text, _ = text_or_file(config.grammar)
        return grammar_format(text)
    return None


def regex_format(regex: str) -> OutputFormat:
    """Return the format of texts that match a regular expression. Raises `UsageError`."""
    return _checked("--regex", {"lark_grammar": f"start: /{_escaped(regex)}/"})


def grammar_format(text: str) -> OutputFormat:
    """Return the format of a grammar in Lark or GBNF. Raises `UsageError`."""
    return _checked("--grammar", {"lark_grammar": _lark(text)})


def choice_format(texts: Sequence[str]) -> OutputFormat:
    """Return the format of one of some texts. Raises `UsageError`."""
    choices = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    return _checked("choice", {"lark_grammar": f"start: {choices}"})


def json_object_format() -> OutputFormat:
    """Return the format of any JSON object."""
    return _json_format("JSON object", {"type": "object"}, "Answer with a JSON object.")


def json_schema_format(
    schema: Mapping[str, Any], name: str = "JSON schema", *, has_instruction: bool = True
) -> OutputFormat:
    """Return the format of a JSON schema. Raises `UsageError` for what cannot be enforced."""
    instruction = (
        "Answer with a JSON document that matches this JSON schema, and with nothing else:\n"
        + json.dumps(schema, ensure_ascii=False)
    )
    return _json_format(name, schema, instruction if has_instruction else "")


def schema_format(text: str, *, has_instruction: bool = True) -> OutputFormat:
    """Return the format of a JSON schema, given as its text or as the name of its file.

    Raises as `chosen_format` does.
    """
    source, file = text_or_file(text)
    schema = parsed_schema(source, file or "the schema")
    name = Path(file).name if file else "JSON schema"
    return json_schema_format(schema, name, has_instruction=has_instruction)


def output_grammar(
    form: OutputFormat,
    reasoning: ReasoningFormat | None,
    control: Mapping[str, int],
    *,
    is_thinking: bool,
) -> str:
    """Return the grammar of all that the model generates: its reasoning, then the answer.

    `is_thinking`: the prompt has opened the reasoning. `control` are the ids of the control tokens.
    """
    if reasoning is None:
        return json.dumps({"grammars": [form.grammar]})
    begins = " | ".join(_marker(text, control) for text in reasoning.opens)
    heads = " | ".join(_marker(text, control) for text in reasoning.heads)
    rules = [
        f"start: {'thought' if is_thinking else f'(SPACE ({begins}) thought)?'} SPACE "
        f"{f'({heads})? ' if heads else ''}@{_ANSWER}",
        r"SPACE: /[ \n]{0,4}/",
    ]
    if reasoning.close in control:
        rules += [f"thought: TEXT {_marker(reasoning.close, control)}", r"TEXT: /(?s:.*)/"]
    else:
        rules.append(f"thought[suffix={json.dumps(reasoning.close)}]: /(?s:.*)/")
    whole = {"name": "output", "lark_grammar": "\n".join(rules)}
    return json.dumps({"grammars": [whole, {**form.grammar, "name": _ANSWER}]})


def _marker(text: str, control: Mapping[str, int]) -> str:
    """Return Lark for a marker of reasoning: control tokens by their ids, and text."""
    parts, start = [], 0
    while start < len(text):
        found = [name for name in control if name and text.startswith(name, start)]
        if found:
            longest = max(found, key=len)
            parts.append(f"<[{control[longest]}]>")
            start += len(longest)
            continue
        ends = [at for name in control if name and (at := text.find(name, start)) >= 0]
        end = min(ends, default=len(text))
        parts.append(json.dumps(text[start:end]))
        start = end
    return " ".join(parts)


def _json_format(name: str, schema: Mapping[str, Any], instruction: str) -> OutputFormat:
    guidance = schema.get("x-guidance", {})
    if not isinstance(guidance, dict):
        raise UsageError("the schema's x-guidance is not a JSON object", "leave it out")
    try:
        if message := _fault(schema):
            path, message = _innermost_fault(schema, message)
            raise UsageError(
                f"the schema cannot be enforced at {_short(path)}: {_short(message)}",
                "remove the keyword, or express it with others",
            )
        grammar = _schema_grammar(bounded(simplified(schema)))
    except RecursionError:
        raise UsageError("the schema is nested too deeply", "use a simpler schema") from None
    if _grammar_fault(grammar):  # the bounds contradict what the schema asks for
        grammar = _schema_grammar(simplified(schema))
    return OutputFormat(name, grammar, instruction, schema)


def _schema_grammar(schema: Mapping[str, Any]) -> dict[str, Any]:
    # Options of the schema itself take precedence.
    guidance = {"whitespace_pattern": _WHITESPACE, **schema.get("x-guidance", {})}
    return {"json_schema": {**schema, "x-guidance": guidance}}


def _fault(schema: Mapping[str, Any]) -> str:
    """Return what llguidance has against a schema, the empty text for nothing."""
    return _grammar_fault(_schema_grammar(simplified(schema)))


def _grammar_fault(grammar: Mapping[str, Any]) -> str:
    from llguidance import LLMatcher

    message: str = LLMatcher.validate_grammar(json.dumps({"grammars": [grammar]}))
    first, *more = message.strip().split("\n")
    # The reason of an invalid regular expression is on a line below its text.
    reasons = [line.removeprefix("error:") for line in more if line.startswith("error:")]
    return "".join((first.removesuffix(" regex parse error:"), *reasons[:1]))


def _innermost_fault(schema: Mapping[str, Any], message: str) -> tuple[str, str]:
    """Return the JSON pointer of the innermost schema with a fault, and the fault.

    In a very large schema it may be one around the innermost.
    """
    definitions = {name: schema[name] for name in _DEFINITIONS if name in schema}
    pointer, current = "#", schema
    checks_left = _MAX_CHECKED_CHARACTERS // len(json.dumps(schema))  # none checks more than that
    while True:
        for keys, inner in inner_schemas(current):
            checks_left -= 1
            if checks_left < 0:
                return pointer, message
            if found := _fault({**definitions, **inner}):
                pointer = "/".join((pointer, *map(_escaped_key, keys)))
                current, message = inner, found
                break
        else:
            return pointer, message


def _short(text: str) -> str:
    """Return the two ends of a text that may be very long."""
    return (
        text
        if len(text) <= _MAX_SHOWN
        else f"{text[: _MAX_SHOWN // 2]} … {text[-_MAX_SHOWN // 2 :]}"
    )


def _escaped_key(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")  # RFC 6901


def parsed_schema(text: str, name: str) -> Mapping[str, Any]:
    """Return the JSON schema in a text. Raises `UsageError`, which begins with `name`."""
    try:
        schema = json.loads(text)
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply", "use a simpler schema") from None
    except ValueError as error:
        raise UsageError(
            f"{name} is not valid JSON: {error}", "give a JSON schema, or its file"
        ) from None
    if not isinstance(schema, dict):
        raise UsageError(f"{name} is not a JSON object", 'give a schema such as {"type": "object"}')
    return schema


def _checked(name: str, grammar: Mapping[str, Any]) -> OutputFormat:
    if message := _grammar_fault(grammar):
        raise UsageError(f"{name}: {_short(message)}", "see swiftchat help formats")
    return OutputFormat(name, grammar)


def _lark(text: str) -> str:
    """Return a grammar in Lark or GBNF (llama.cpp's format) as Lark."""
    return text if _LARK.search(text) else gbnf_to_lark(text)


def _escaped(regex: str) -> str:
    """Escape the slashes of a regular expression, which end one in Lark."""
    return regex.replace("\\/", "/").replace("/", "\\/")
