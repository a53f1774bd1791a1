"""Chat templates."""

import random
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from swiftchat.tokenizer.template.process import TemplateProcess
from swiftchat.tokenizer.template.provenance import render
from tests.fuzz.mutations import mutate_text
from tests.fuzz.target import Difference, NoReferenceError, Target
from tests.support.chat_templates import SPECIAL_TOKENS, STYLES

_WORDS = (
    "{% for x in range(100000) %}",
    "{% for m in messages %}",
    "{% endfor %}",
    "{% if x %}",
    "{% endif %}",
    "{% set a = 1 %}",
    "{% set ns = namespace(a=1) %}",
    "{% macro m(x) %}{{ m(x) }}{% endmacro %}",
    "{{ 'x' * 1000000 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ messages.__class__ }}",
    "{{ ''.join(messages) }}",
    "{{ ('%' ~ '1000000000d') % 1 }}",
    "{{ messages | tojson }}",
    "| tojson",
    "| length",
    "| trim",
    "[::-1]",
    "[0]",
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "messages",
    "loop.index0",
    "raise_exception('x')",
    "strftime_now('%Y')",
    "and",
    "not",
    "~",
    "* 2",
    "'",
    '"',
)
_MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello <|im_end|> & 'x'\n"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "again"},
]
_PROCESS = TemplateProcess()


def _mutate(chance: random.Random, data: bytes) -> bytes:
    return mutate_text(chance, data, _WORDS)


def _load(data: bytes, folder: Path) -> Any:
    source = data.decode("utf-8", "replace")
    own = {**SPECIAL_TOKENS, "add_generation_prompt": True}
    inputs = {"messages": _MESSAGES}
    text, ranges = render(_PROCESS, source, inputs, own, {"<s>": 1, "<|im_end|>": 2})
    assert all(0 <= a <= b <= len(text) for a, b in ranges)
    return text


def _compare(data: bytes, folder: Path, loaded: Any) -> None:
    try:
        (expected,), _ = render_jinja_template(
            conversations=[_MESSAGES],
            chat_template=data.decode("utf-8", "replace"),
            add_generation_prompt=True,
            **SPECIAL_TOKENS,
        )
    except Exception as error:
        raise NoReferenceError from error
    if loaded != expected:
        raise Difference(f"{loaded[:60]!r} and {expected[:60]!r}")


TEMPLATE = Target(
    "chat-template",
    lambda: [source.encode() for source in STYLES.values()],
    _mutate,
    _load,
    200,
    _compare,
)
