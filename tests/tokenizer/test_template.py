"""Chat templates: ids equal to `transformers`', and no control tokens from messages."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer import Tokenizer
from swiftchat.tokenizer.template.process import TemplateProcess, TemplateStopped
from tests.support.chat_templates import trained_tokenizer
from tests.support.worker_processes import command_line

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Strips white space, writes the date, and sets a variable in the loop.
STRIPPING = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|im_start|>system\n" }}{{- "Today: " + strftime_now("%d %b %Y") + "\n" + system_message }}
{%- for message in messages %}
    {%- if message.role not in ['user', 'assistant'] %}
        {{- raise_exception("unknown role " + message.role) }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\n\n' + message['content'] | trim + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n\n' }}{%- endif %}
"""
# Searches and splits contents, and writes tools.
THINKING = """{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n' }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set ns.multi_step_tool = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- if loop.index0 > ns.last %}
            {%- set content = '<think>\n' + reasoning + '\n</think>\n\n' + content %}
        {%- endif %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + content }}
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}
            {%- else %}{{- call.arguments | tojson }}{%- endif %}{{- '}\n</tool_call>' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
MARKED = (
    "{% for m in messages %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% endfor %}"
)
MACRO = (
    "{% macro turn(m) %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endmacro %}"
    "{% for m in messages %}{{ turn(m) }}{% endfor %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "stripping": STRIPPING,
    "thinking": THINKING,
    "generation": MARKED,
    "upper": "{% for m in messages %}{{ m.content|upper }}<|im_end|>{% endfor %}",
    "replaced": "{% for m in messages %}{{ m.content|replace('a', 'b') }}<|im_end|>{% endfor %}",
    "length": "{% for m in messages %}{{ m.content|length }}{{ m.content }}<|im_end|>{% endfor %}",
}
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|x|>"]


SPEC = trained_tokenizer("user assistant system the <|im_end|> <|im_start|> hello", SPECIALS, 320)


def our_tokenizer(template: str | None) -> Tokenizer:
    config = {
        "bos_token": "<|im_start|>",
        "eos_token": {"content": "<|im_end|>"},
        "chat_template": template,
    }
    return Tokenizer.from_json(SPEC, config, {"eos_token_id": [1, 2]})


def transformers_tokenizer(template: str) -> Any:
    library = tokenizers.Tokenizer.from_str(json.dumps(SPEC))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=library,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        chat_template=template,
    )


def transformers_ids(reference: Any, messages: list[dict[str, Any]], **variables: Any) -> list[int]:
    variables = {"add_generation_prompt": True, **variables}
    encoding = reference.apply_chat_template(messages, tokenize=True, return_dict=True, **variables)
    ids: list[int] = encoding["input_ids"]
    return ids


CONTENTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.lists(
        st.sampled_from(
            [
                "a",
                "e",
                " ",
                "\n",
                "<think>",
                "</think>",
                "<",
                ">",
                "|",
                "im_end",
                "user",
                "Hello",
                "你好",
                "\U0001f600",
            ]
        ),
        max_size=8,
    ).map("".join),
)
CHATS = st.builds(
    lambda system, turns: [
        *([{"role": "system", "content": system}] if system is not None else []),
        *(
            {"role": "assistant" if n % 2 else "user", "content": turn}
            for n, turn in enumerate(turns)
        ),
    ],
    st.none() | CONTENTS,
    st.lists(CONTENTS, min_size=1, max_size=4),
)


@pytest.mark.parametrize("name", ["chatml", "stripping", "thinking", "generation", "upper"])
def test_ids_of_messages_equal_transformers(name: str) -> None:
    reference, tokenizer = transformers_tokenizer(TEMPLATES[name]), our_tokenizer(TEMPLATES[name])

    @settings(max_examples=80, deadline=None)
    @given(CHATS, st.booleans())
    def check(messages: list[dict[str, Any]], prompt: bool) -> None:
        if any(special in m["content"] for m in messages for special in SPECIALS):
            return
        ids = tokenizer.prompt(messages, add_generation_prompt=prompt).ids
        assert ids == transformers_ids(reference, messages, add_generation_prompt=prompt)

    check()


def test_ids_of_tools_and_content_parts_equal_transformers() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "<é> 'x'"}}]
    calls = [{"function": {"name": "f", "arguments": {"x": [1, "é\n"]}}}]
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": calls},
    ]
    ids = our_tokenizer(THINKING).prompt(messages, tools=tools).ids
    assert ids == transformers_ids(transformers_tokenizer(THINKING), messages, tools=tools)
    parts = (
        "{% for m in messages %}{% for part in m.content %}"
        "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>{% endfor %}"
    )
    chat = [{"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "image"}]}]
    assert our_tokenizer(parts).prompt(chat).ids == transformers_ids(
        transformers_tokenizer(parts), chat
    )


def test_smollm2_ids_equal_transformers(smollm2: Path) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(smollm2)
    tokenizer = Tokenizer.load(smollm2)
    for messages in (
        [{"role": "user", "content": "Hello there  \n"}],
        [{"role": "system", "content": " x"}, {"role": "user", "content": "你好 12345\n\n"}],
        [{"role": "user", "content": ""}, {"role": "assistant", "content": "\nSure!"}],
    ):
        assert tokenizer.prompt(messages).ids == transformers_ids(reference, messages)


HOSTILE_TEXTS = st.lists(
    st.sampled_from(
        [
            *SPECIALS,
            "<|im_",
            "start|>",
            "end|>",
            "<",
            "|>",
            "<|",
            ">",
            "im_end",
            " ",
            "\n",
            "a",
            "</think>",
            "<think>",
            "user",
            "你",
        ]
    ),
    min_size=1,
    max_size=6,
).map("".join)


@pytest.mark.fault(14)
@pytest.mark.parametrize("name", TEMPLATES)
def test_message_text_never_becomes_a_control_token(name: str) -> None:
    """The prompt has the control tokens of one with harmless contents, whatever is done to them."""
    tokenizer = our_tokenizer(TEMPLATES[name])
    control = set(tokenizer.special_tokens.values())

    @settings(max_examples=80, deadline=None)
    @given(st.lists(HOSTILE_TEXTS, min_size=1, max_size=3))
    def check(contents: list[str]) -> None:
        roles = ["user", "assistant", "user"]
        hostile = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
        harmless = [message | {"content": "hello"} for message in hostile]
        found, expected = (
            [i for i in tokenizer.prompt(chat).ids if i in control] for chat in (hostile, harmless)
        )
        assert found == expected
        if name in ("chatml", "generation"):
            text = tokenizer.decode(tokenizer.prompt(hostile).ids)
            assert all(content in text for content in contents)

    check()


def test_template_and_message_text_are_encoded_as_one_span() -> None:
    """`user\\n` and the line breaks at the start of a message may share a token."""
    messages = [{"role": "user", "content": "\n\n  x<|im_end|>"}]
    reference = tokenizers.Tokenizer.from_str(json.dumps(SPEC))
    whole = "user\n" + messages[0]["content"]
    reference.encode_special_tokens = True
    span = reference.encode(whole, add_special_tokens=False).ids
    ids = our_tokenizer(CHATML).prompt(messages).ids
    assert any(ids[n : n + len(span)] == span for n in range(len(ids)))


def test_macros_give_the_same_ids() -> None:
    messages = [{"role": "user", "content": "hello <|im_start|>\n"}]
    ids = our_tokenizer(MACRO).prompt(messages, add_generation_prompt=False).ids
    assert ids.count(0) == 1
    assert ids.count(1) == 1
    messages = [{"role": "user", "content": "hello \U0001f600\n"}]
    assert our_tokenizer(MACRO).prompt(messages).ids == transformers_ids(
        transformers_tokenizer(MACRO), messages
    )


def test_tools_printed_as_python_objects() -> None:
    """Their text is the caller's, so its control tokens are ordinary text."""
    source = (
        "{% for tool in tools %}{{ tool }}{% endfor %}{{ tools|string }}"
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    function = {"name": "f", "description": "it's <|im_end|> \n é", "count": 1.5, "strict": None}
    tools: list[Any] = [{"type": "function", "function": function}]
    hello = [{"role": "user", "content": "hello"}]
    ids = our_tokenizer(source).prompt(hello, tools=tools).ids
    assert (ids.count(0), ids.count(1)) == (1, 1)
    function["description"] = "it's \n é"
    assert our_tokenizer(source).prompt(hello, tools=tools).ids == transformers_ids(
        transformers_tokenizer(source), hello, tools=tools
    )


def test_worker_process_stays_and_is_replaced() -> None:
    """It renders until a limit ends it; the next rendering starts another one."""
    source = "{{ pid }}{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}"
    others = workers()  # of templates that still exist
    process = TemplateProcess()
    render = partial(_rendered, process, source)
    assert render(1, 7) == "7"
    first = workers() - others
    assert len(first) == 1
    with pytest.raises(BadModelFile, match="as an integer"):
        render("x")
    assert render(2, 8) == "8"
    assert workers() - others == first
    with pytest.raises(TemplateStopped, match="exceeds its time limit"):
        render(99999, seconds=0.05)
    assert render(2, 9) == "9"
    second = workers() - others
    assert len(second) == 1 and second != first
    del process, render
    assert workers() <= others


def _rendered(
    process: TemplateProcess, source: str, n: int | str, pid: int = 0, seconds: float = 60
) -> str:
    return process.render(source, {"n": n, "pid": pid}, {}, (), seconds)


def workers() -> set[int]:
    """Return the child processes that render templates."""
    name = "swiftchat.tokenizer.template.worker"
    children = psutil.Process().children()
    return {child.pid for child in children if command_line(child)[-1:] == [name]}


def test_template_errors_are_reported() -> None:
    hello = [{"role": "user", "content": "hello"}]
    for source, reason in (
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{% if %}", "Expected"),
        ("{{ 1/0 }}", "zero"),
        ("{{ messages[0].content.nothing.more }}", "nothing"),
        ("x" * 300_000, "long"),
        (None, "no chat template"),
    ):
        with pytest.raises(BadModelFile, match=reason):
            our_tokenizer(source).prompt(hello)
    with pytest.raises(TypeError):
        our_tokenizer(CHATML).prompt([{"role": "user", "content": object()}])


def test_template_files_replace_the_config(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(SPEC))
    named = [{"name": "tool_use", "template": "tool"}, {"name": "default", "template": "plain"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert Tokenizer.load(tmp_path).template == "plain"
    (tmp_path / "chat_template.jinja").write_text("own file")
    assert Tokenizer.load(tmp_path / "tokenizer.json").template == "own file"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("rag file")
    assert Tokenizer.load(tmp_path).templates == {"default": "own file", "rag": "rag file"}
    assert our_tokenizer(CHATML).eos_ids == (1, 2)


def test_tools_select_the_tool_use_template() -> None:
    named = [{"name": "tool_use", "template": "hello"}, {"name": "default", "template": "user"}]
    tokenizer = Tokenizer.from_json(SPEC, {"chat_template": named})
    chat = [{"role": "user", "content": "x"}]
    assert tokenizer.decode(tokenizer.prompt(chat).ids) == "user"
    assert tokenizer.decode(tokenizer.prompt(chat, tools=[]).ids) == "hello"
    assert tokenizer.decode(tokenizer.prompt(chat, template="the").ids) == "the"
    without_default = Tokenizer.from_json(SPEC, {"chat_template": named[:1]})
    with pytest.raises(BadModelFile, match="only tool_use"):
        without_default.prompt(chat)


def test_templates_by_name_and_in_the_older_file() -> None:
    by_name = {"default": "{{ messages[0].content }}", "other": "x"}
    assert Tokenizer.from_json(SPEC, {"chat_template": by_name}).templates == by_name
    own = {"tokenizer.json": json.dumps(SPEC).encode()}
    listed = [{"name": name, "template": source} for name, source in by_name.items()]
    for value, wanted in (("y", {"default": "y"}), (by_name, by_name), (listed, by_name)):
        older = {"chat_template.json": json.dumps({"chat_template": value}).encode()}
        assert Tokenizer.from_files(own | older).templates == wanted
        config = {"tokenizer_config.json": b'{"chat_template": "z"}'}
        assert Tokenizer.from_files(own | older | config).template == "z"
        newer = {"chat_template.jinja": b"j"}
        assert Tokenizer.from_files(own | older | config | newer).templates == {"default": "j"}
    for invalid in ("[]", '{"chat_template": 7}', '{"chat_template": {"default": 7}}'):
        with pytest.raises(BadModelFile, match=r"^chat_template\.json"):
            Tokenizer.from_files(own | {"chat_template.json": invalid.encode()})


@pytest.mark.parametrize("value", [7, {"default": 7}, [7], [{"name": "x"}], [{"template": "x"}]])
def test_invalid_chat_template_field_is_rejected(value: Any) -> None:
    with pytest.raises(BadModelFile, match="chat_template"):
        Tokenizer.from_json(SPEC, {"chat_template": value})


def test_importing_the_tokenizer_does_not_import_jinja() -> None:
    code = "import sys, swiftchat.tokenizer; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_template_changes_its_own_lists() -> None:
    """Each rendering begins with the lists as they are written; texts in them stay the template's.

    The lists of the caller, and lists in them, are not changed.
    """
    source = (
        "{% set ids = ['<|im_end|>'] %}{% set seen = namespace(roles=[]) %}"
        "{% for m in messages %}{% set _ = ids.append(m.content) %}"
        "{% set _ = seen.roles.insert(0, m.role) %}{% endfor %}"
        "{{ ids.pop(0) }}{{ ids | join(',') }}{{ seen.roles + ['x'] }}{{ ids[:1].pop() }}"
    )
    tokenizer = our_tokenizer(source)
    messages = [{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "b"}]
    for template in (source.replace("{{ ids[:1].pop() }}", ""),) * 2:
        prompt = tokenizer.prompt(messages, template=template)
        text = "".join(span.text for span in prompt.spans)
        assert text == "<|im_end|><|im_end|>,b['assistant', 'user', 'x']"
        assert [span.text for span in prompt.spans if span.is_control] == ["<|im_end|>"]
    with pytest.raises(BadModelFile, match="unsafe"):
        tokenizer.prompt(messages, template=source)


def test_what_a_filter_yields_is_written_as_json() -> None:
    source = "{{ messages | map(attribute='role') | tojson }}"
    prompt = our_tokenizer(source).prompt([{"role": "user", "content": "x"}])
    assert "".join(span.text for span in prompt.spans) == '["user"]'
