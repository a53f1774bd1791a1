"""Templates that look at the texts: what they decide, and their own control tokens, stay."""

from functools import cache
from itertools import pairwise
from typing import Any

import jinja2
import pytest
import transformers.utils.chat_template_utils as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.tokenizer import Tokenizer
from swiftchat.tokenizer.template.own_text import OwnText, own, own_ranges
from tests.support.chat_templates import trained_tokenizer

SPECIALS = ["<|im_start|>", "<|im_end|>", "<|x|>", "<|user|>", "<|1|>"]
SPEC = trained_tokenizer("user assistant the <|im_end|> <|im_start|> hello", SPECIALS, 320)
# Bodies of a turn, in which `m` is the message. The number of control tokens of the template in
# a turn must not depend on the text, unless the template writes others.
BODIES = [
    "{% if m.content[0] == '>' %}(quote) {% endif %}{{ m.content }}",
    "{% if m.content[-1:] == '?' %}(question) {% endif %}{{ m.content }}",
    "{% if m.content | first == '>' %}(quote) {% endif %}{{ m.content }}",
    "{% if m.content | last == '?' %}(question) {% endif %}{{ m.content }}",
    "{% if 'x' in m.content %}(x) {% endif %}{{ m.content }}",
    "{{ m.content | length }}: {{ m.content }}",
    "{% if m.content | length > 9 %}long {% endif %}{{ m.content }}",
    "{% if m.content.strip() != m.content %}(blank) {% endif %}{{ m.content.strip() }}",
    "{{ m.content.split('>')[-1].lstrip() }}",
    "{% for line in m.content.split('\n') %}> {{ line }}\n{% endfor %}",
    "{% for line in m.content.splitlines() %}> {{ line }}\n{% endfor %}",
    "{% for word in m.content.split() %}{{ word }} {% endfor %}",
    "{% if m.content.startswith('>') %}{{ m.content[1:] }}{% else %}{{ m.content }}{% endif %}",
    "{% if m.content.endswith('?') %}{{ m.content[:-1] }}{% else %}{{ m.content }}{% endif %}",
    "{{ m.content[:5] }}...{{ m.content[-5:] }}",
    "{{ m.content | replace('>', '&') }}",
    "{{ m.content.replace('<', '(') }}",
    "{{ m.content | upper }}",
    "{{ m.content | title }}",
    "{{ m.content | capitalize }}",
    "{{ m.content | reverse }}",
    "{{ m.content | trim | tojson }}",
    "{{ m.content | e }}",
    "{{ m.content | safe }}",
    "{{ (m.content | safe) + '<>' }}{{ '<>' + (m.content | safe) }}",
    "{{ ('<>' | safe) + m.content }}{{ m.content ~ (m.content | safe).upper() }}",
    "{{ m.content | truncate(9) }}",
    "{{ m.content | indent(2) }}",
    "{{ m.content | wordcount }}{{ m.content }}",
    "{{ m.content.count('>') }}{{ m.content.find('x') }}{{ m.content }}",
    "{% for c in m.content %}{{ c }}{% endfor %}",
    "{{ m.content | list | join('') }}",
    "{{ [m.content, m.content] | join(' | ') }}",
    "{{ ', '.join([m.content, 'x']) }}",
    "{{ '%s!' % m.content }}",
    "{{ '%s!' | format(m.content) }}",
    "{{ '{}!'.format(m.content) }}",
    "{{ '{0:>9}|{a!r}'.format(m.content, a=m.role) }}",
    "{{ m.content ~ '!' ~ 1 ~ none }}",
    "{{ (m.content * 2)[:8] }}",
    "{{ m.content if m.content < 'n' else m.content | lower }}",
    "{% if m.content is string and m.content is not mapping %}{{ m.content }}{% endif %}",
    "{% if m.content == m.content.lower() %}lower {% endif %}{{ m.content }}",
    "{% set parts = m.content.partition('x') %}{{ parts[2] }}{{ parts[0] }}",
    "{% set ns = namespace(text='') %}{% for c in m.content %}{% set ns.text = c + ns.text %}"
    "{% endfor %}{{ ns.text }}",
    "{% if m.content.isdigit() %}number {% endif %}{{ m.content }}",
    "{% set text %}[{{ m.content }}]{% endset %}{{ text }}",
    "{% filter upper %}{{ m.content }}{% endfilter %}",
    "{% macro f(t) %}({{ t }}){% endmacro %}{{ f(m.content) }}",
    "{% macro f() %}({{ caller() }}){% endmacro %}{% call f() %}{{ m.content }}{% endcall %}",
]
# Ways to write a turn with four control tokens: the text is `{}`.
TURNS = {
    "data": "<|im_start|>user\n{}<|im_end|><|x|><|user|>",
    "strings": "{{ '<|im_start|>' + m.role + '\n' }}{}"
    "{{ '<|im_end|>' ~ '<|x|>' ~ '<|' + m.role + '|>' }}",
    "blocks": "{% set turn %}<|im_start|>user\n{}<|im_end|>{% endset %}"
    "{{ turn | trim + '<|x|>' }}<|user|>",
    "macro": "{% macro t(name) %}<|{{ name }}|>{% endmacro %}{{ t('im_start') }}user\n{}"
    "{{ t('im_end') }}{{ t('x') }}{{ t(m.role) }}",
    "cut": "{{ 'a,<|im_start|>,b'.split(',')[1] }}{}"
    "{{ '  <|im_end|>\n'.strip() }}{{ ('1 <|x|> 2' | replace(' ', ''))[1:-1] }}"
    "{{ 'aa<|user|>'.removeprefix('aa') }}",
    "formats": "{{ '<|%s|>' % 'im_start' }}{}{{ '<|{}|>'.format('im_end') }}"
    "{{ '<|{name}|>'.format(name='x') }}{{ '<|%s|>' | format(m.role) }}",
    "lists": "{{ ['<|im_start|>', 'user\n'] | join }}{}"
    "{{ ['<|im_end|>', '<|x|>'] | join('') }}{{ ''.join(['<|', m.role, '|>']) }}",
    "cases": "{{ '<|IM_START|>' | lower }}{}{{ '<|IM_END|>'.lower() }}"
    "{{ '<|X|>' | string | lower }}{{ ('<|user|>' | safe) }}",
    "lines": "{{ '\n<|im_start|>\nuser'.splitlines()[1] }}{}"
    "{{ '<|im_end|>:<|x|>'.partition(':')[0] }}{{ 'a:<|x|>'.rpartition(':')[2] }}"
    "{{ 'b <|user|>'.rsplit(none, 1)[-1] }}",
    "numbers": "<|im_start|>{}<|im_end|><|{{ 1 }}|>{{ '<|' + 1 | string + '|>' }}",
    "stored": "{% set ns = namespace(a='') %}{% set names = {'end': '<|im_end|>'} %}"
    "{% set ns.a = ns.a + '<|im_start|>' %}{{ ns.a }}{}{{ names.end }}{{ names['end'] }}"
    "{{ {'user': '<|user|>'}[m.role] }}",
    "repeated": "{{ '<|im_start|>' * 2 }}{}{{ 2 * '<|im_end|>' }}",
}
TEXTS = [
    "Hello there",
    "> quoted line",
    "3 <",
    "",
    "x",
    "1?",
    "a\n\nb\n",
    " Ü<|im_end|> ",
    "<|",
    "|>",
]


@cache
def tokenizer_of(source: str) -> Tokenizer:
    return Tokenizer.from_json(SPEC, {"chat_template": source})


def spans(tokenizer: Tokenizer, text: str) -> tuple[str, int]:
    """Return the text of a prompt and the number of its control tokens."""
    prompt = tokenizer.prompt([{"role": "user", "content": text}])
    return "".join(one.text for one in prompt.spans), sum(one.is_control for one in prompt.spans)


def rendered(source: str, text: str) -> str:
    conversation = [{"role": "user", "content": text}]
    texts, _ = reference.render_jinja_template([conversation], chat_template=source)
    first: str = texts[0]
    return first


def check(source: str, text: str) -> None:
    """Check that the text is transformers', with the four control tokens of the template."""
    try:
        expected = rendered(source, text)
    except jinja2.TemplateError:  # e.g. the first character of nothing
        return
    assert spans(tokenizer_of(source), text) == (expected, 4)


@pytest.mark.fault(14)
@pytest.mark.parametrize("body", BODIES)
def test_what_a_template_decides_does_not_change_its_control_tokens(body: str) -> None:
    for text in TEXTS:
        check("{% for m in messages %}" + TURNS["data"].replace("{}", body) + "{% endfor %}", text)


@pytest.mark.fault(14)
@pytest.mark.parametrize("name", TURNS)
def test_control_tokens_that_a_template_assembles(name: str) -> None:
    body = "{% if m.content.startswith('>') %}(quote) {% endif %}{{ m.content }}"
    turn = TURNS[name].replace("{}", body, 1)
    for text in TEXTS:
        check("{% for m in messages %}" + turn + "{% endfor %}", text)


@pytest.mark.parametrize(
    "source",
    [
        "{{ m.content.replace('(x)', '<|x|>') }}",
        "{{ m.content.strip().replace('(x)', '<|x|>', 1) }}",
        "{{ m.content | replace('(x)', '<|x|>') }}",
        "{{ m['content'] | trim | replace('(x)', '<|' ~ 'x|>') | replace('b', 'b') }}",
    ],
)
def test_what_a_template_puts_into_a_text_is_its_own(source: str) -> None:
    """As placeholders of images; what else is in the text stays text."""
    source = "{% for m in messages %}" + source + "{% endfor %}"
    found, num_control = spans(tokenizer_of(source), "a (x) b <|im_end|><|x|>")
    assert (found, num_control) == ("a <|x|> b <|im_end|><|x|>", 1)


def test_text_of_the_caller_is_no_control_token_however_it_is_assembled() -> None:
    """Parts of a control token from the caller, or from both, make none."""
    for source, text in (
        ("{{ m.content[1:] }}", "a<|im_end|>"),
        ("{{ m.content + '|>' }}", "<|im_end"),
        ("{{ '<|' ~ m.content ~ '|>' }}", "im_end"),
        ("{{ '<|%s|>' % m.content }}", "im_end"),
        ("{{ '<|{}|>'.format(m.content) }}", "im_end"),
        ("{{ m.content.format('im_end') }}", "<|{}|>"),
        ("{{ m.content % 'im_end' }}", "<|%s|>"),
        ("{{ ['<|', '|>'] | join(m.content) }}", "im_end"),
        ("{{ m.content.join(['<|', '|>']) }}", "im_end"),
        ("{{ '<|x|>' | replace('x', m.content) }}", "im_end"),
        ("{{ m.content.split(',') | join('') }}", "<|im,_end|>"),
        ("{{ m.content | safe }}", "<|im_end|>"),
        ("{{ m.content | lower }}", "<|IM_END|>"),
        ("{{ [m.content] }}", "<|im_end|>"),
        ("{{ {'a': m.content} | tojson }}", "<|im_end|>"),
        ("{% set x %}{{ m.content }}{% endset %}{{ x }}", "<|im_end|>"),
        ("{{ strftime_now(m.content) }}", "<|im_end|>"),
        ("{% for c in m.content %}{{ c }}{% endfor %}", "<|im_end|>"),
    ):
        found, num_control = spans(
            tokenizer_of("{% for m in messages %}" + source + "{% endfor %}"), text
        )
        assert "<|im_end|>" in found, source
        assert num_control == 0, source


def test_an_infinite_number_in_a_template() -> None:
    """Its Python name would be that of a variable."""
    source = "{% if 3 < 1e999 and -1e999 < 3 %}{{ [1e999, '<|x|>'][1] }}{% endif %}{{ 1e999 }}"
    assert spans(tokenizer_of(source), "") == ("<|x|>inf", 1)


CALLER, TEMPLATE = "ab ,\n<ßİ", "pqa;\t"
PIECES = st.lists(
    st.one_of(st.text(CALLER, max_size=4), st.text(TEMPLATE, max_size=4).map(own)), max_size=5
)
OPERATIONS: list[Any] = [
    lambda t: t[1:3],
    lambda t: t[-2:],
    lambda t: t[:0],
    lambda t: t[5:1],
    lambda t: t.strip(),
    lambda t: t.lstrip("a"),
    lambda t: t.rstrip(" b"),
    lambda t: t.removeprefix("a"),
    lambda t: t.removesuffix("b"),
    lambda t: t.replace("a", "xy"),
    lambda t: t.replace(own("a"), own(""), 1),
    lambda t: t.replace("", "-"),
    lambda t: t.upper(),
    lambda t: t.lower(),
    lambda t: t.title(),
    lambda t: t + "z",
    lambda t: "z" + t,
    lambda t: t * 2,
    lambda t: own("%s-%s") % (t, 1),
    lambda t: own(";").join([t, "q", t]),
    lambda t: "".join(t.split("a")),
    *(
        lambda t, n=n, call=call: call(t)[min(n, len(call(t)) - 1)] if call(t) else ""
        for n in range(3)
        for call in (
            lambda t: t.split(),
            lambda t: t.split(",", 1),
            lambda t: t.split("ab"),
            lambda t: t.rsplit(None, 1),
            lambda t: t.rsplit("a", 1),
            lambda t: t.splitlines(),
            lambda t: t.splitlines(True),
            lambda t: t.partition("a"),
            lambda t: t.rpartition("a"),
        )
    ),
]


@settings(max_examples=200, deadline=None)
@given(PIECES, st.sampled_from(OPERATIONS))
def test_operations_give_the_text_of_str_and_the_characters_of_the_template(
    pieces: list[str], operation: Any
) -> None:
    text: str = OwnText()
    for piece in pieces:
        text += piece
    found = operation(text)
    assert found == operation(str.__str__(text)[:])
    ranges = list(own_ranges(found))
    assert all(0 <= low < high <= len(found) for low, high in ranges)
    assert all(first[1] < second[0] for first, second in pairwise(ranges))
    characters = {one for low, high in ranges for one in found[low:high]}
    assert characters.isdisjoint(set(CALLER.upper() + CALLER) - set("Aa"))


def test_parts_keep_the_origin_of_each_character() -> None:
    text = own("a<") + "b<" + own("c d") + " e" + own("\n")
    assert marked(text) == "**b<*** e*"
    assert list(map(marked, text.split("<"))) == ["*", "b", "*** e*"]
    assert list(map(marked, text.split())) == ["**b<*", "*", "e"]
    assert list(map(marked, text.splitlines(True))) == ["**b<*** e*"]
    assert list(map(marked, text.partition("c"))) == ["**b<", "*", "** e*"]
    assert marked(text.strip()) == "**b<*** e"
    assert marked(text[2:-4].upper()) == "B<**"
    assert marked(text.replace("<", own("."))) == "**b****" + " e*"


def marked(text: str) -> str:
    """Return a text with `*` for each character of the template."""
    mask = list(str.__str__(text))
    for low, high in own_ranges(text):
        mask[low:high] = "*" * (high - low)
    return "".join(mask)
