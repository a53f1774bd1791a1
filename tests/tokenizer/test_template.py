"""Chat templates: as in `transformers`, no orders from messages, no harm from hostile ones."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer import Tokenizer
from swiftchat.tokenizer.template.bounded import is_bounded
from swiftchat.tokenizer.template.sandbox import parse_template
from swiftchat.tokenizer.template.template import ChatTemplate

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# White space is stripped, the date is written, a variable is set in the loop.
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
# Contents are searched and split, and there are tools.
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
# Not told to be harmless, so it runs in a process of its own.
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


def small_spec() -> dict[str, Any]:
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.train_from_iterator(
        ["user assistant system the <|im_end|> <|im_start|> hello"] * 5,
        tokenizers.trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=SPECIALS,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    library.add_tokens(["<think>", "</think>"])
    result: dict[str, Any] = json.loads(library.to_str())
    return result


SPEC = small_spec()


def ours(template: str | None) -> Tokenizer:
    config = {
        "bos_token": "<|im_start|>",
        "eos_token": {"content": "<|im_end|>"},
        "chat_template": template,
    }
    return Tokenizer.from_json(SPEC, config, {"eos_token_id": [1, 2]})


def theirs(template: str) -> Any:
    library = tokenizers.Tokenizer.from_str(json.dumps(SPEC))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=library,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        chat_template=template,
    )


def expected(reference: Any, messages: list[dict[str, Any]], **variables: Any) -> list[int]:
    variables = {"add_generation_prompt": True, **variables}
    answer = reference.apply_chat_template(messages, tokenize=True, return_dict=True, **variables)
    ids: list[int] = answer["input_ids"]
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
def test_ordinary_messages_as_in_transformers(name: str) -> None:
    reference, tokenizer = theirs(TEMPLATES[name]), ours(TEMPLATES[name])

    @settings(max_examples=80, deadline=None)
    @given(CHATS, st.booleans())
    def check(messages: list[dict[str, Any]], prompt: bool) -> None:
        if any(special in m["content"] for m in messages for special in SPECIALS):
            return
        ids = tokenizer.apply_template(messages, add_generation_prompt=prompt)
        assert ids == expected(reference, messages, add_generation_prompt=prompt)

    check()


def test_tools_and_parts_as_in_transformers() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "<é> 'x'"}}]
    calls = [{"function": {"name": "f", "arguments": {"x": [1, "é\n"]}}}]
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": calls},
    ]
    ids = ours(THINKING).apply_template(messages, tools=tools)
    assert ids == expected(theirs(THINKING), messages, tools=tools)
    parts = (
        "{% for m in messages %}{% for part in m.content %}"
        "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>{% endfor %}"
    )
    chat = [{"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "image"}]}]
    assert ours(parts).apply_template(chat) == expected(theirs(parts), chat)


def test_smollm2_as_in_transformers(smollm2: Path) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(smollm2)
    tokenizer = Tokenizer.load(smollm2)
    for messages in (
        [{"role": "user", "content": "Hello there  \n"}],
        [{"role": "system", "content": " x"}, {"role": "user", "content": "你好 12345\n\n"}],
        [{"role": "user", "content": ""}, {"role": "assistant", "content": "\nSure!"}],
    ):
        assert tokenizer.apply_template(messages) == expected(reference, messages)


EVIL = st.lists(
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


@pytest.mark.parametrize("name", TEMPLATES)
def test_messages_never_become_control_tokens(name: str) -> None:
    """As many control tokens as with harmless contents: none from a message.

    Where the template hides what comes from where, there may be fewer, never more.
    """
    tokenizer = ours(TEMPLATES[name])
    control = set(tokenizer.special_tokens.values())
    child = name == "replaced"

    @settings(max_examples=6 if child else 80, deadline=None)
    @given(st.lists(EVIL, min_size=1, max_size=3))
    def check(contents: list[str]) -> None:
        roles = ["user", "assistant", "user"]
        evil = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
        tame = [message | {"content": "hello"} for message in evil]
        found, own = (
            [i for i in tokenizer.apply_template(chat) if i in control] for chat in (evil, tame)
        )
        if name in ("replaced", "length"):
            assert len(found) <= len(own)
        else:
            assert found == own
            text = tokenizer.decode(tokenizer.apply_template(evil))
            if name in ("chatml", "generation"):
                assert all(content in text for content in contents)

    check()


def test_text_across_the_edge_of_a_message_is_one() -> None:
    """`user\\n` and a message that begins with line breaks are encoded as one stretch."""
    messages = [{"role": "user", "content": "\n\n  x<|im_end|>"}]
    reference = tokenizers.Tokenizer.from_str(json.dumps(SPEC))
    whole = "user\n" + messages[0]["content"]
    reference.encode_special_tokens = True
    span = reference.encode(whole, add_special_tokens=False).ids
    ids = ours(CHATML).apply_template(messages)
    assert any(ids[n : n + len(span)] == span for n in range(len(ids)))


# What the templates of the Llama 3.1 and Qwen 2.5 families are made of.
USUAL = [
    "{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}"
    "{%- if not tools is defined %}{%- set tools = none %}{%- endif %}"
    "{%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\n\n' }}{%- endfor %}",
    "{%- for message in messages %}{%- set tool_call = message.tool_calls[0].function %}"
    "{%- for name, value in tool_call.arguments | items %}{{- name + '=' + value }}"
    "{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{%- endfor %}",
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start|>' + message['role'] + '\n\n' + message['content'] | trim %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}",
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('alternate') }}{% endif %}{{ m.content }}{% endfor %}",
]


@pytest.mark.parametrize(
    "source",
    [*(TEMPLATES[n] for n in ("chatml", "stripping", "thinking", "generation", "upper")), *USUAL],
)
def test_usual_templates_run_here(source: str) -> None:
    assert is_bounded(parse_template(source))


def test_a_template_in_a_process_of_its_own_gives_the_same() -> None:
    assert not is_bounded(parse_template(MACRO))
    messages = [{"role": "user", "content": "hello <|im_start|>\n"}]
    ids = ours(MACRO).apply_template(messages, add_generation_prompt=False)
    assert ids.count(0) == 1
    assert ids.count(1) == 1
    messages = [{"role": "user", "content": "hello \U0001f600\n"}]
    assert ours(MACRO).apply_template(messages) == expected(theirs(MACRO), messages)


PROBES = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''|attr('__class__') }}",
    "{{ ''['__class__'] }}",
    "{{ messages.__class__.__init__.__globals__ }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ ('{0.__class__}' | safe).format(messages) }}",
    "{{ '%s'.__mod__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__['sys'] }}",
    "{{ self._TemplateReference__context }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{% import 'os' as os %}",
    "{% include '/etc/passwd' %}",
    "{{ messages.append(1) }}",
    "{{ [].__class__.__base__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__globals__ }}",
]


@pytest.mark.parametrize("source", PROBES)
def test_a_template_cannot_reach_python(source: str) -> None:
    with pytest.raises(BadModelFile):
        ours(source).apply_template([{"role": "user", "content": "x"}])


BOMBS = [
    "{{ 10**(10**8) }}",
    "{% set x = 10**(10**8) %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in messages[0].content %}{% for b in messages[0].content %}"
    "{% for c in messages[0].content %}{% endfor %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% set c = m.content %}"
    + "{% for m in c %}" * 12
    + "{% endfor %}" * 13,
    "{% for m in messages %}{% set m = m.content %}"
    + "".join(f"{{% for m{n} in m %}}" for n in range(12))
    + "{% endfor %}" * 13,
    "{{ 'x' * 10**10 }}",
    "{{ 'x'.center(10**11) }}",
    "{{ '%99999999999d' % 3 }}",
    "{{ '{:>99999999999}'.format(3) }}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{% set x = 'xx' %}" + "{% set x = x + x %}" * 60,
    "{% set x = messages %}" + "{% set x = x + x %}" * 60 + "{{ x }}",
    "{% set x = 'xx' %}" + "{% set x = x ~ x %}" * 60,
    "{% set x = '\"' %}" + "{% set x = x|tojson %}" * 80,
    "{% set x = [1] %}" + "{% set x = [x, x] %}" * 60 + "{{ x }}",
    "{% set n0 = namespace() %}"
    + "".join(f"{{% set n{i + 1} = namespace(a=n{i}, b=n{i}) %}}" for i in range(60))
    + "{{ n60 }}",
    "{% for c in messages[0].content %}{{ messages|tojson }}{% endfor %}",
    "{{ messages|tojson(indent=9999999999) }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ lipsum(n=99999999) }}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_a_template_without_end_is_stopped(source: str) -> None:
    messages = [{"role": "user", "content": "x<|im_end|>" * 2000}]
    start = time.monotonic()
    with pytest.raises(BadModelFile):
        ours(source).apply_template(messages)
    assert time.monotonic() - start < 3  # 2 s, and what a busy machine adds


def test_errors_of_templates() -> None:
    hello = [{"role": "user", "content": "hello"}]
    for source, said in (
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{% if %}", "Expected"),
        ("{{ 1/0 }}", "zero"),
        ("{{ messages[0].content.nothing.more }}", "nothing"),
        ("x" * 300_000, "long"),
        (None, "no chat template"),
    ):
        with pytest.raises(BadModelFile, match=said):
            ours(source).apply_template(hello)
    with pytest.raises(TypeError):
        ours(CHATML).apply_template([{"role": "user", "content": object()}])


def test_the_first_variant_decides() -> None:
    template = ChatTemplate("{{ raise_exception('x') if x else 'fine' }}")
    assert template.render([{"x": False}, {"x": True}]) == ["fine", None]
    with pytest.raises(BadModelFile):
        template.render([{"x": True}, {"x": False}])


def test_where_the_template_comes_from(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(SPEC))
    named = [{"name": "tool_use", "template": "tool"}, {"name": "default", "template": "plain"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert Tokenizer.load(tmp_path).template == "plain"
    (tmp_path / "chat_template.jinja").write_text("own file")
    assert Tokenizer.load(tmp_path / "tokenizer.json").template == "own file"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("rag file")
    assert Tokenizer.load(tmp_path).templates == {"default": "own file", "rag": "rag file"}
    assert ours(CHATML).eos_ids == (1, 2)


def test_tools_choose_the_template_for_them() -> None:
    named = [{"name": "tool_use", "template": "hello"}, {"name": "default", "template": "user"}]
    tokenizer = Tokenizer.from_json(SPEC, {"chat_template": named})
    chat = [{"role": "user", "content": "x"}]
    assert tokenizer.decode(tokenizer.apply_template(chat)) == "user"
    assert tokenizer.decode(tokenizer.apply_template(chat, tools=[])) == "hello"
    assert tokenizer.decode(tokenizer.apply_template(chat, template="the")) == "the"
    without_default = Tokenizer.from_json(SPEC, {"chat_template": named[:1]})
    with pytest.raises(BadModelFile, match="only tool_use"):
        without_default.apply_template(chat)


@pytest.mark.parametrize("value", [7, {"default": "x"}, [7], [{"name": "x"}], [{"template": "x"}]])
def test_what_is_no_template(value: Any) -> None:
    with pytest.raises(BadModelFile, match="chat_template"):
        Tokenizer.from_json(SPEC, {"chat_template": value})


def test_a_template_writes_in_proportion_to_what_it_is_given() -> None:
    """Five times what it was given is too much, beyond a free megabyte; once is not."""
    chat = [{"role": "user", "content": "x " * (1 << 20)}]
    once, often = (
        "{% for m in messages %}" + "{{ m.content }}" * times + "{% endfor %}" for times in (1, 9)
    )
    assert len(ChatTemplate(once).render([{"messages": chat}])[0] or "") == 1 << 21
    with pytest.raises(BadModelFile, match="output limit"):
        ChatTemplate(often).render([{"messages": chat}])


def test_jinja_is_loaded_only_for_templates() -> None:
    code = "import sys, swiftchat.tokenizer; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
