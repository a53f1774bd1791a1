"""The markers that a template is not known by, from reasoning that it has written."""

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from swiftchat.errors import BadModelFile

if TYPE_CHECKING:
    from swiftchat.tokenizer import Tokenizer

_REASONING, _ANSWER = "480151623", "270918281"  # texts without case
_FIELDS = ("reasoning_content", "reasoning", "thinking")
_TAG = r"(?:<[^<>\s]{1,60}>|\[[^\[\]\n]{2,60}\]|◁[^◁▷\s]{1,60}▷)"
_TAG_BEFORE = re.compile(rf"({_TAG})\s*$")
_TAG_AFTER = re.compile(rf"\s*({_TAG})")
_MAX_CHARACTERS = 200  # that are searched for a tag
_QUESTION = {"role": "user", "content": "?"}
_THINKING = {"enable_thinking": True, "thinking": True}
_CALL = {
    "id": "abcde1234",
    "type": "function",
    "function": {"name": "lookup", "arguments": {"key": "value"}},
}


@lru_cache(maxsize=16)
def derive_markers(source: str) -> tuple[str, str] | None:
    """Return the tags around the reasoning of an answer in a template, None if there are none.

    The tags around every answer are not those of reasoning.
    """
    if not any(name in source for name in _FIELDS):
        return None
    # Imported here, because it would delay the prompt.
    from swiftchat.tokenizer.template.process import TemplateProcess

    process = TemplateProcess()

    def shown(**fields: Any) -> str:
        message = {"role": "assistant", "content": _ANSWER, **fields}
        variables = {"messages": [_QUESTION, message], "add_generation_prompt": False}
        try:
            return process.render(source, {**variables, **_THINKING}, {}, ())
        except BadModelFile:
            return ""

    plain = _tags_around(_ANSWER, shown())
    reasoning = dict.fromkeys(_FIELDS, _REASONING)
    for fields in (reasoning, {**reasoning, "tool_calls": [_CALL]}):
        begin, end = _tags_around(_REASONING, shown(**fields))
        if begin and end and begin != plain[0] and end != plain[1]:
            return begin, end
    return None


def text_after_reasoning(tokenizer: "Tokenizer", source: str) -> str:
    """Return what a template writes between reasoning and the answer; empty if it shows none."""
    message = {"role": "assistant", "content": _ANSWER, **dict.fromkeys(_FIELDS, _REASONING)}
    options: dict[str, Any] = {"add_generation_prompt": False, **_THINKING}
    try:
        prompt = tokenizer.prompt([_QUESTION, message], template=source, **options)
    except BadModelFile:
        return ""
    before, found, _ = "".join(span.text for span in prompt.spans).partition(_ANSWER)
    text = before.rpartition(_REASONING)[2] if _REASONING in before else ""
    return text if found and len(text) <= _MAX_CHARACTERS else ""


def _tags_around(text: str, prompt: str) -> tuple[str, str]:
    before, found, after = prompt.partition(text)
    begin = _TAG_BEFORE.search(before[-_MAX_CHARACTERS:])
    end = _TAG_AFTER.match(after[:_MAX_CHARACTERS])
    return (begin[1] if begin and found else ""), (end[1] if end and found else "")
