"""Hostile chat templates: no access to Python, bounded time and output."""

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer import Tokenizer
from swiftchat.tokenizer.template import process
from swiftchat.tokenizer.template.process import TemplateProcess
from tests.support import chat_templates


@cache
def tokenizer_spec() -> dict[str, Any]:
    return chat_templates.tokenizer_json()


def render(source: str, messages: list[dict[str, Any]]) -> list[int]:
    config = {**chat_templates.SPECIAL_TOKENS, "chat_template": source}
    return Tokenizer.from_json(tokenizer_spec(), config).prompt(messages).ids


def total_cpu_s() -> float:
    """Return the processor time of this process and its ended children.

    Unlike real time it does not depend on other programs.
    """
    return sum(os.times()[:4])


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
    "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{% import 'os' as os %}",
    "{% include '/etc/passwd' %}",
    "{{ messages.append(1) }}",
    "{% set first = [messages] | first %}{{ first.pop() }}",
    "{{ messages[0].update(x=1) }}",
    "{{ [].__class__ }}",
    "{{ [].__class__.__base__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__globals__ }}",
]


@pytest.mark.fault(9)
@pytest.mark.parametrize("source", PROBES)
def test_template_cannot_reach_python(source: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(BadModelFile) as caught:
        render(source.replace("MARK", str(mark)), [{"role": "user", "content": "x"}])
    assert caught.value.exit_code == 7 and not mark.exists()


BOMBS = [
    "{% set l = ['x'] %}{% for n in range(99) %}{% set _ = l.extend(l) %}{% endfor %}",
    "{% set l = [] %}{% for n in range(10**9) %}{% set _ = l.append(n) %}{% endfor %}",
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
    # The template's own text, whose ranges are kept.
    "{% set x = 'a,' %}" + "{% set x = x + x %}" * 20 + "{% for m in messages[0].content %}"
    "{{ x.split(',')[0] }}{% endfor %}",
    "{% set x = 'a,' %}" + "{% set x = x + x %}" * 20 + "{% for m in messages[0].content %}"
    "{{ x.partition(',')[2].strip()[:1] }}{% endfor %}",
]


@pytest.mark.fault(10)
@pytest.mark.parametrize("source", BOMBS)
def test_unbounded_template_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if source is not BOMBS[0]:  # one with the limit of the program, the others sooner
        monkeypatch.setattr(process, "_SECONDS", 0.1)
    messages = [{"role": "user", "content": "x<|im_end|>" * 2000}]
    start_s = total_cpu_s()
    with pytest.raises(BadModelFile):
        render(source, messages)
    assert total_cpu_s() - start_s < 10


@pytest.mark.parametrize("source", ["{{ messages[0].content }}", "{{ range(99)|list|length }}"])
def test_time_limit(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_SECONDS", 0.0)
    with pytest.raises(BadModelFile, match="exceeds its time limit"):
        render(source, [{"role": "user", "content": "x"}])


def test_output_limit_is_proportional_to_the_input() -> None:
    """The limit is a megabyte plus four times the input."""
    chat = [{"role": "user", "content": "x " * (1 << 20)}]
    once, often = (
        "{% for m in messages %}" + "{{ m.content }}" * times + "{% endfor %}" for times in (1, 9)
    )
    assert len(TemplateProcess().render(once, {"messages": chat}, {}, ())) == 1 << 21
    with pytest.raises(BadModelFile, match="output limit"):
        TemplateProcess().render(often, {"messages": chat}, {}, ())
