"""Roles: variables, defaults, values as data."""

import pytest

from swiftchat.chat.options.roles import parse_values
from swiftchat.errors import UsageError
from tests.support.roles import parse_role

REVIEW = """---
temp: 0.25
prompt: "Review this {{lang}} code:"
variables:
  lang: python
  version: 3.10
  focus:
---
You review {{lang}} {{ version }} and look for {{focus}}.
Write \\{{lang}} as it is.
"""


def test_variables_have_values_defaults_or_neither() -> None:
    role = parse_role(REVIEW, "r.md")
    assert role.defaults == {"lang": "python", "version": "3.10", "focus": None}
    filled = role.filled({"lang": "c", "focus": "leaks"})
    assert filled.system == ("You review c 3.10 and look for leaks.\nWrite {{lang}} as it is.")
    assert filled.prompt == "Review this c code:" and filled.settings == {"temperature": 0.25}
    assert role.filled({"focus": "x"}).prompt == "Review this python code:"


def test_a_variable_that_is_not_listed_has_no_default() -> None:
    assert parse_role("About {{topic}}, {{topic}}.", "r.md").defaults == {"topic": None}
    empty = parse_role('---\nvariables: {a: "", b: ~, c: null, d: "null"}\n---\n', "r.md")
    assert empty.defaults == {"a": "", "b": None, "c": None, "d": "null"}


def test_errors_name_all_missing_and_unknown_variables() -> None:
    role = parse_role("{{a}} {{b}} {{c}}", "r.md")
    with pytest.raises(UsageError, match="a value for 'a' and 'c'") as caught:
        role.filled({"b": "x"})
    assert "-v a=VALUE -v c=VALUE" in caught.value.hint
    with pytest.raises(UsageError, match="no variable 'd'") as caught:
        role.filled({"d": "x"})
    assert "a, b, c" in caught.value.hint
    with pytest.raises(UsageError, match="no variable 'd'"):
        parse_role("Plain.", "r.md").filled({"d": "x"})


@pytest.mark.parametrize(
    "value", ["{{b}}", "{{a}}", "\\{{b}}", "\\1 \\g<0>", "{% raw %}", "", "\0"]
)
def test_a_value_is_inserted_as_it_is(value: str) -> None:
    role = parse_role("<{{a}}|{{b}}>", "r.md").filled({"a": value, "b": "B"})
    assert role.system == f"<{value}|B>"


@pytest.mark.parametrize(
    "text", ["{{}}", "{{ 1a }}", "{ {a} }", "{{a.b}}", "{{a()}}", "{{a|upper}}", "{{a b}}", "{a}"]
)
def test_other_braces_are_text(text: str) -> None:
    assert parse_role(text, "r.md").filled({}).system == text


def test_values_on_the_command_line() -> None:
    assert parse_values(["a=1", "b=x=y", "c=", "a=2"]) == {"a": "2", "b": "x=y", "c": ""}
    for word in ("lang", "=x", "a b=x", ""):
        with pytest.raises(UsageError, match="NAME=VALUE"):
            parse_values([word])


@pytest.mark.parametrize(
    "header",
    [
        "variables: python",
        "variables: [a]",
        "variables: {a: [1]}",
        "variables: {1a: x}",
        "variables: {yes no: x}",
        "variables: {? [a] : x}",
        "prompt: {{a}}",
        "prompt: [a]",
    ],
)
def test_invalid_variables_are_a_usage_error(header: str) -> None:
    with pytest.raises(UsageError, match=r"r\.md"):
        parse_role(f"---\n{header}\n---\n", "r.md")
