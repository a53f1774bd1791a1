"""The format of calls that a template is not known by, from a call that it has written."""

import re

from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.tools.formats import ToolFormat
from swiftchat.chat.tools.parsers import parse_argument_keys, parse_invokes, parse_json

_TAG = r"(?:<[^<>\s]{1,60}>|\[[A-Z_/]{2,40}\])"
_TAGS_BEFORE = re.compile(rf"(?:{_TAG}\s*)+$")
_TAGS_AFTER = re.compile(rf"\s*((?:{_TAG}\s*)+)")
_MAX_CHARACTERS = 500  # that are searched for tags
_ONE_TAG = re.compile(_TAG)
_JSON_BEFORE_NAME = re.compile(r'\[?\s*\{\s*"(?:name|tool_name)"\s*:\s*"$')
_INVOKE_BEFORE_NAME = re.compile(r'<[^<>\s"/]{0,24}invoke name="$')
# Hunyuan's tags end with the name of a release, as in `<arg_key:opensource>`.
_ARGUMENT_KEY = re.compile(r"<arg_key(:\w+)?>")


def derive_tool_format(shown: str, plain: str, name: str, argument: str) -> ToolFormat | None:
    """Return the format of a call in a prompt, None if it is not tags around a known syntax.

    `shown` has a call of the tool `name` with the text `argument`, and nothing else of an
    assistant; `plain` has the text `argument` as the assistant's answer instead.
    """
    end = shown.find(argument)
    start = shown.rfind(name, 0, end)
    answer = plain.find(argument)
    if min(start, end, answer) < 0:
        return None
    before, after = shown[:start], shown[end + len(argument) :][:_MAX_CHARACTERS]
    before = before[-_MAX_CHARACTERS:]
    json_start = _JSON_BEFORE_NAME.search(before)
    invoke_start = _INVOKE_BEFORE_NAME.search(before)
    if inside_start := json_start or invoke_start:
        before = before[: inside_start.start()]
    header = _tags_before(plain[:answer])
    tags = _tags_before(before)
    own = tags[len(header) :] if tags[: len(header)] == header else tags
    if not own:
        return None
    opens = own[0]
    close = _closing(opens, after, plain[answer + len(argument) :])
    # The tags may be control tokens.
    inside = shown[start:end] + (after[: after.find(close)] if close else "")
    marks = tuple(dict.fromkeys([*own[1:], *_ONE_TAG.findall(inside)]))
    if json_start:
        return ToolFormat("", (opens,), close, parse_json, marks=marks)
    if invoke_start:
        return ToolFormat("", (opens,), close, parse_invokes, marks=marks)
    key = _ARGUMENT_KEY.search(shown, start, end)
    if key is None:
        return None
    release = key[1] or ""
    separator = _ONE_TAG.match(shown, start + len(name))
    each = own[-1] if len(own) > 1 else ""

    def parse(text: str) -> list[ToolCall]:
        return parse_argument_keys(text, release, each, separator[0] if separator else "")

    return ToolFormat("", (opens,), close, parse, marks=marks)


def _tags_before(text: str) -> list[str]:
    found = _TAGS_BEFORE.search(text[-_MAX_CHARACTERS:])
    return _ONE_TAG.findall(found[0]) if found else []


def _closing(opens: str, after: str, after_answer: str) -> str:
    """Return the tag that ends a call, "" if only the end of the turn does."""
    named = f"</{opens[1:]}"
    if opens.startswith("<") and named in after:
        return named
    # What follows the rest of the arguments, and is not what follows every answer.
    found = _TAGS_AFTER.search(after)
    tags = _ONE_TAG.findall(found[1]) if found else []
    return tags[0] if tags and not after_answer.lstrip().startswith(tags[0]) else ""
