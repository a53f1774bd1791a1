"""Grammars in GBNF keep their language: random ones against a recognizer of their trees."""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.chat.model.output_format import grammar_format
from swiftchat.errors import UsageError
from tests.chat.model.test_bounded_schemas import accepts
from tests.support.cases import each_case

EQUATION = """root ::= (sum "=" gap num "\\n")+
sum ::= num ("+" num)*
num ::= [0-9]+ gap
gap ::= [ \\t\\n]*
"""
Node = tuple[Any, ...]
TEXTS = ["".join(letters) for n in range(5) for letters in itertools.product("abc", repeat=n)]


def ends(node: Node, rules: list[Node], text: str, start: int) -> Iterator[int]:
    """Yield where a match of a node that begins at `start` may end; rules use later ones only."""
    match node:
        case ("text", literal):
            if text.startswith(literal, start):
                yield start + len(literal)
        case ("class", letters):
            if start < len(text) and text[start] in letters:
                yield start + 1
        case ("rule", number):
            yield from ends(rules[number], rules, text, start)
        case ("or", *choices):
            for choice in choices:
                yield from ends(choice, rules, text, start)
        case ("and", *parts):
            found = {start}
            for part in parts:
                found = {end for at in found for end in ends(part, rules, text, at)}
            yield from found
        case ("times", part, low, high):
            found, seen = {start}, set()
            for count in range(len(text) + low + 1 if high is None else high + 1):
                if count >= low:
                    seen |= found
                found = {end for at in found for end in ends(part, rules, text, at)}
            yield from seen


def written(node: Node) -> str:
    match node:
        case ("text", literal):
            return json.dumps(literal)
        case ("class", letters):
            return f"[{letters}]"
        case ("rule", number):
            return f"a-rule-{number}"
        case ("or", *choices):
            return f"({' | '.join(map(written, choices))})"
        case ("and", *parts):
            return f"({' '.join(map(written, parts))})"
        case (_, part, low, high):
            sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
            counts = f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
            return f"({written(part)}){sign or counts}"
    raise AssertionError(node)


def nodes(num_rules: int, first: int) -> st.SearchStrategy[Node]:
    """Nodes that use the rules from `first` on."""
    leaves: list[st.SearchStrategy[Node]] = [
        st.tuples(st.just("text"), st.text("abc", max_size=2)),
        st.tuples(st.just("class"), st.sampled_from(["a", "ab", "bc", "abc"])),
    ]
    if first < num_rules:
        leaves.append(st.tuples(st.just("rule"), st.integers(first, num_rules - 1)))
    counts = st.sampled_from([(0, None), (1, None), (0, 1), (2, 2), (1, 3), (2, None)])
    return st.recursive(
        st.one_of(leaves),
        lambda inner: st.one_of(
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: ("and", *parts)),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: ("or", *parts)),
            st.tuples(inner, counts).map(lambda found: ("times", found[0], *found[1])),
        ),
        max_leaves=5,
    )


GRAMMARS = st.tuples(*(nodes(3, first) for first in (1, 2, 3))).map(list)


@given(GRAMMARS)
@settings(max_examples=60, deadline=None)
def test_random_grammars_keep_their_language(rules: list[Node]) -> None:
    lines = [f"a-rule-{i} ::= {written(rule)}" for i, rule in enumerate(rules)]
    form = grammar_format("\n".join(["root ::= a-rule-0", *lines]))
    for text in TEXTS:
        expected = len(text) in ends(rules[0], rules, text, 0)
        assert accepts(form, text) == expected, (lines, text)


def test_classes_are_not_greedy() -> None:
    form = grammar_format(EQUATION)
    for text in ("1=2\n", "12\n+3 = \n4 \n", "1+2=3\n4=4\n", "12\n=3\n\n"):
        assert accepts(form, text), text
    for text in ("1=2", "=2\n", "1=2\n3", "1 2=3\n"):
        assert not accepts(form, text), text


@each_case(
    ("grammar", "pattern"),
    [
        ('root ::= [a-z]* "b"', "[a-z]*b"),
        ('root ::= "ab" "x" | [a] [b] "y"', "abx|aby"),
        ("root ::= x x\nx ::= [ab]+", "[ab]{2,}"),
        ('root ::= (\n  "a" |\n  "b"\n)+ # end', "[ab]+"),
        ('# first\nroot ::=\n  "a" |\n  "b"', "[ab]"),
        ("root ::= [^a-c]", "[^a-c]"),
        (r'root ::= [\x61-\x62\]-] "\u0063"', r"[ab\]-]c"),
        ("root ::= . .", "(?s)..|..?"),
        ('root ::= "<<root>>"', "<<root>>"),
    ],
)
def test_forms_of_grammars(grammar: str, pattern: str) -> None:
    form = grammar_format(grammar)
    if "." not in grammar:
        for text in (*TEXTS, "abx", "aby", "x", "]c", "-c", "d", "<<root>>"):
            assert accepts(form, text) == bool(re.fullmatch(pattern, text)), text
    else:
        assert accepts(form, "a\n") and accepts(form, "\u00e9\U0001f600") and not accepts(form, "a")


@each_case(
    ("grammar", "line"),
    [
        ('root ::= "a', 1),
        ('root ::= "a"\nx ::= [a', 2),
        ('root ::= "a"\n\nroot ::= "b"', 3),
        ('# a\nroot ::= "a" missing', 2),
        ('root ::= ("a"', 1),
        ('root ::= "a")', 1),
        ('root ::= "a"{2,1}', 1),
        ('root ::= "a"{x}', 1),
        (r'root ::= "\q"', 1),
        (r'root ::= "\ud83d"', 1),
        ("root ::= [b-a]", 1),
        ('root = "a"', 1),
        ("root ::= " + "(" * 5000, 1),
    ],
)
def test_errors_name_the_line(grammar: str, line: int) -> None:
    with pytest.raises(UsageError, match=f"--grammar: line {line}: "):
        grammar_format(grammar)
