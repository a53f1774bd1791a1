"""Messages in the form in which a template loses none of their texts."""

from functools import cache
from typing import Any

import pytest
import transformers.utils.chat_template_utils as reference

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer import Tokenizer
from swiftchat.tokenizer.template import process as template_module
from tests.support import chat_templates

Chat = list[dict[str, Any]]


@cache
def tokenizer_of(source: str) -> Tokenizer:
    config = {**chat_templates.SPECIAL_TOKENS, "chat_template": source}
    return Tokenizer.from_json(spec(), config)


@cache
def spec() -> dict[str, Any]:
    return chat_templates.tokenizer_json()


def prompt_text(source: str, messages: Chat, **variables: Any) -> str:
    prompt = tokenizer_of(source).prompt(messages, **variables)
    return "".join(span.text for span in prompt.spans)


def rendered(source: str, messages: Chat) -> str:
    texts, _ = reference.render_jinja_template(
        [messages], chat_template=source, **chat_templates.SPECIAL_TOKENS
    )
    first: str = texts[0]
    return first


def in_parts(messages: Chat, *roles: str) -> Chat:
    """Return messages with the contents of these roles, all by default, as parts."""
    return [
        {**one, "content": [{"type": "text", "text": one["content"]}]}
        if not roles or one["role"] in roles
        else one
        for one in messages
    ]


def loop(body: str) -> str:
    return "{% for m in messages %}" + body + "<|im_end|>{% endfor %}"


ONE_PART = "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"
CHAT: Chat = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello <|im_end|>"},
    {"role": "assistant", "content": "Hi.", "reasoning_content": "They greet."},
    {"role": "user", "content": "a"},
]
# Templates that read parts only.
PARTS = {
    "loop": loop("{{ m.role }}: " + ONE_PART),
    "first part": loop(
        "{{ m.role }}{% if m.content[0].type == 'image' %}:{% else %}: {% endif %}"
        "{{ m.content[0]['text'] }}"
    ),
    "selected": loop(
        "{% for p in m.content | selectattr('type', 'equalto', 'text') %}{{ p.text }}{% endfor %}"
    ),
    "rejects texts": loop(
        "{% if m.content is string %}{{ raise_exception('parts!') }}{% endif %}" + ONE_PART
    ),
    "with reasoning": loop("{{ m.reasoning_content }}" + ONE_PART),
    "macro": "{% macro show(parts) %}{% for p in parts %}{{ p.text }}{% endfor %}{% endmacro %}"
    + loop("{{ show(m.content) }}"),
}
# Templates that take texts, or lose them in any form.
TEXTS = {
    "both": loop(
        "{% if m.content is string %}{{ m.content }}{% else %}" + ONE_PART + "{% endif %}"
    ),
    "text": loop("{{ m.content }}"),
    "characters": loop("{% for c in m.content %}{{ c.text or c }}{% endfor %}"),
    "cut": loop("{{ m.content[:4] }}"),
    "backwards": loop("{{ m.content | reverse }}"),
    "dropped": loop("{{ m.role }}"),
    "length": loop("{{ m.content | length }}"),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_template_that_reads_parts_gets_parts(name: str) -> None:
    text = prompt_text(PARTS[name], CHAT)
    assert text == rendered(PARTS[name], in_parts(CHAT))
    assert all(one["content"] in text for one in CHAT)


@pytest.mark.parametrize("name", TEXTS)
def test_a_template_that_takes_texts_gets_texts(name: str) -> None:
    assert prompt_text(TEXTS[name], CHAT) == rendered(TEXTS[name], CHAT)


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_parts_of_one_role_only(role: str) -> None:
    source = loop(
        "{% if m.role == '" + role + "' %}" + ONE_PART + "{% else %}{{ m.content + '' }}{% endif %}"
    )
    text = prompt_text(source, CHAT)
    assert text == rendered(source, in_parts(CHAT, role))
    assert all(one["content"] in text for one in CHAT)


def test_results_of_tools_in_parts() -> None:
    call = {"id": "abcde1234", "type": "function", "function": {"name": "f", "arguments": {}}}
    messages: Chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "12 °C", "name": "f", "tool_call_id": "abcde1234"},
    ]
    source = loop(
        "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% elif m.role == 'tool' %}"
        + ONE_PART
        + "{% else %}{{ m.content }}{% endif %}"
    )
    assert prompt_text(source, messages) == "a<|im_end|>f<|im_end|>12 °C<|im_end|>"


def test_control_tokens_in_parts_are_text() -> None:
    prompt = tokenizer_of(PARTS["loop"]).prompt(CHAT)
    assert sum(span.is_control for span in prompt.spans) == len(CHAT)


# Templates without a system role, or with one at the beginning only.
ALTERNATING = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('take turns') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
IGNORING = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant') %}"
    "[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)
FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system message is the first') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
LAST_COUNTS = (
    "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.s = m.content %}{% endif %}{% endfor %}[system]{{ ns.s }}"
    "{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endif %}"
    "{% endfor %}"
)
ANYWHERE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
WITHOUT = (ALTERNATING, IGNORING)
SYSTEM_FIRST = (FIRST_ONLY, LAST_COUNTS)


def chat(*texts: str) -> Chat:
    """Return messages from texts such as `system x`."""
    found = []
    for text in texts:
        role, _, content = text.partition(" ")
        found.append({"role": role, "content": content})
    return found


@pytest.mark.parametrize("source", WITHOUT)
def test_system_messages_of_a_template_without_them_go_to_the_user(source: str) -> None:
    for messages, expected in (
        (("system x", "user a"), "[user]x\na"),
        (("system x", "user a", "assistant b", "user c"), "[user]x\na[assistant]b[user]c"),
        (("system x", "system y", "user a"), "[user]x\ny\na"),
        (
            ("system x", "user a", "assistant b", "system y", "user c"),
            "[user]x\na[assistant]b[user]y\nc",
        ),
        (("user a", "system y"), "[user]a\ny"),
        (("user a", "assistant b", "system y"), "[user]a[assistant]b[user]y"),
        (("user a", "system y", "assistant b"), "[user]a\ny[assistant]b"),
        (("system x",), "[user]x"),
        (("system x", "assistant b", "user c"), "[user]x[assistant]b[user]c"),
    ):
        assert prompt_text(source, chat(*messages)) == expected


@pytest.mark.parametrize("source", SYSTEM_FIRST)
def test_system_messages_of_a_template_that_takes_one_at_the_beginning(source: str) -> None:
    for messages, expected in (
        (("system x", "user a"), "[system]x[user]a"),
        (("system x", "system y", "user a"), "[system]x\ny[user]a"),
        (
            ("system x", "user a", "assistant b", "system y", "user c"),
            "[system]x[user]a[assistant]b[user]y\nc",
        ),
        (("system x", "system y", "user a", "system z"), "[system]x\ny[user]a\nz"),
    ):
        assert prompt_text(source, chat(*messages)) == expected


def test_system_messages_stay_where_the_template_takes_them() -> None:
    messages = chat("system x", "system y", "user a", "assistant b", "system z", "user c")
    assert prompt_text(ANYWHERE, messages) == rendered(ANYWHERE, messages)


def test_messages_without_a_role_or_a_content() -> None:
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    call = {"role": "assistant", "content": None, "tool_calls": []}
    messages = [{"role": "system"}, {"content": "a"}, call, *chat("system x", "user b")]
    assert prompt_text(source, messages) == "[system][]a[assistant][system]x[user]b"
    assert prompt_text(IGNORING, messages) == "[assistant][user]x\nb"


def test_system_messages_in_parts() -> None:
    source = ALTERNATING.replace("{{ m.content }}", ONE_PART)
    assert prompt_text(source, chat("system x", "user a")) == "[user]x\na"


def test_a_template_that_rejects_all_forms_says_so() -> None:
    source = "{{ raise_exception('closed') }}"
    with pytest.raises(BadModelFile, match="closed"):
        prompt_text(source, CHAT)


def test_a_stopped_template_is_not_tried_in_other_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(template_module, "_SECONDS", 0.0)
    original = template_module.TemplateProcess.render

    def counted(self: Any, *args: Any) -> str:
        calls.append(args)
        return original(self, *args)

    monkeypatch.setattr(template_module.TemplateProcess, "render", counted)
    for source in ("{{ messages[0].content }}", "{{ range(99) | list | length }}"):
        calls.clear()
        with pytest.raises(BadModelFile, match="exceeds its time limit"):
            Tokenizer.from_json(spec(), {"chat_template": source}).prompt(CHAT)
        assert len(calls) == 1
