"""Output formats: their options, and random walks through their grammars."""

import json
import random
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.chat.model.output_format import (
    OutputFormat,
    chosen_format,
    output_grammar,
    schema_format,
)
from swiftchat.chat.model.reasoning import FORMATS
from swiftchat.chat.options.config import ChatConfig
from swiftchat.engine.api.vocabulary import Vocabulary
from swiftchat.engine.schedule.constraint import Constraint
from swiftchat.engine.schedule.token_trie import TokenTrie
from swiftchat.errors import FileSystemError, UsageError

STOP, THINK, END_THINK = 0, 1, 2
CONTROL = {"<stop>": STOP, "<think>": THINK, "</think>": END_THINK}
WORDS = (b'{"', b'":', b'", "', b"true", b"null", b"}", b"\n  ")
PIECES = (*(text.encode() for text in CONTROL), *(bytes([i]) for i in range(256)), *WORDS)


@cache
def trie(special: tuple[int, ...]) -> TokenTrie:
    return TokenTrie(Vocabulary(PIECES, special, (STOP,)))


TRIE = trie(tuple(CONTROL.values()))


def walk(grammar: str, seed: int, control: Mapping[str, int] = CONTROL) -> str:
    """Return a random text of a grammar; it ends where it may, and prefers to leave reasoning."""
    constraint, choose, text = (
        Constraint(trie(tuple({STOP, *control.values()})), grammar, len(PIECES)),
        random.Random(seed),
        b"",
    )
    while len(text) < 20_000:
        allowed: list[int] = constraint.allowed.nonzero().flatten().tolist()
        is_leaving = END_THINK in allowed and choose.random() < 0.2
        token = STOP if STOP in allowed else END_THINK if is_leaving else choose.choice(allowed)
        constraint.accept(token)
        if token == STOP:
            return text.decode("utf-8", "replace")
        text += PIECES[token]
    raise AssertionError("the text does not end")


def answer(form: OutputFormat, seed: int) -> str:
    return walk(output_grammar(form, None, CONTROL, is_thinking=False), seed)


def schemas(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    """JSON schemas whose documents are short."""
    scalars = st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 5)),
        st.builds(
            lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
            st.integers(-99, 99),
            st.integers(0, 50),
        ),
        st.builds(
            lambda values: {"enum": values},
            st.lists(st.one_of(st.integers(-9, 9), st.text('ab"é', max_size=3)), min_size=1),
        ),
        st.just({"type": "string", "pattern": "^[a-f]{1,3}$"}),
        st.builds(lambda value: {"const": value}, st.text(max_size=4)),
    )
    if depth == 0:
        return scalars
    inner = schemas(depth - 1)
    names = st.text('xyz"/~', min_size=1, max_size=2)
    return st.one_of(
        scalars,
        st.builds(
            lambda items, most: {"type": "array", "items": items, "maxItems": most},
            inner,
            st.integers(0, 2),
        ),
        st.builds(
            lambda properties, num_required: {
                "type": "object",
                "properties": properties,
                "required": sorted(properties)[:num_required],
                "additionalProperties": False,
            },
            st.dictionaries(names, inner, max_size=3),
            st.integers(0, 3),
        ),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=2)),
    )


@pytest.mark.fault(49)
@given(schemas(2), st.integers(0, 2**31))
@settings(max_examples=100, deadline=None)
def test_every_answer_matches_its_schema(schema: dict[str, Any], seed: int) -> None:
    text = answer(schema_format(json.dumps(schema)), seed)
    jsonschema.validate(json.loads(text), schema)


def test_json_objects_do_not_loop_in_blanks() -> None:
    form = chosen_format(ChatConfig(json_object=True))
    assert form is not None and form.is_json
    constraint = Constraint(
        TRIE, output_grammar(form, None, CONTROL, is_thinking=False), len(PIECES)
    )
    for text in (b"{", b"\n", *[b" "] * 24):
        constraint.accept(PIECES.index(text))
    assert not constraint.allowed[PIECES.index(b" ")]
    assert not constraint.allowed[PIECES.index(b"\n")]
    assert constraint.allowed[PIECES.index(b'"')]


def test_regular_expressions() -> None:
    for pattern in (
        r"[0-9]{4}-[0-9]{2}",
        r"a/b|c\/d",
        "yes|no",
        r"(?i:Ok)[.!]?",
        r"\d{2}:\d{2}(:\d{2})?",
        r"[^a-z\W]{1,3}-",
        r"(ab|a)(c|bcd)?",
        r"\x41\u00e9{2}",
        "",
    ):
        form = chosen_format(ChatConfig(regex=pattern))
        assert form is not None
        assert all(re.fullmatch(pattern, answer(form, seed)) for seed in range(5))


LIST, TREE = "a(, a){0,3}", r"\((x|\((x|\(x\)){1,2}\)){1,2}\)"
CALL = r'turn (on|off) \{"room": ?"[a-z]{1,5}"\}'
MARK = "(low|high): -?[0-9]{1,3}(\\.[0-9])?"


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ('start: "a" (", " "a"){0,3}', LIST),
        ('root ::= "a" more{0,3}\nmore ::= ", a"', LIST),
        # Terminals, alternatives, optional parts, characters by class, and comments.
        (
            'start: LEVEL ": " NUMBER  // a mark\nLEVEL: "low" | "high"\n'
            "NUMBER: /-?[0-9]{1,3}/ (/[.]/ /[0-9]/)?",
            MARK,
        ),
        (
            'root ::= level ": " "-"? digit{1,3} ("." digit)?  # a mark\n'
            'level ::= "low" | "high"\ndigit ::= [0-9]',
            MARK,
        ),
        # Rules that nest, to a depth.
        (
            'start: "(" one (one)? ")"\none: "x" | "(" two (two)? ")"\ntwo: "x" | "(" "x" ")"',
            TREE,
        ),
        (
            'root ::= "(" one one? ")"\none ::= "x" | "(" two two? ")"\ntwo ::= "x" | "(x)"',
            TREE,
        ),
        # A JSON document inside a text.
        (
            'start: "turn " ("on" | "off") " " @args\nargs: %json {"type": "object", '
            '"properties": {"room": {"type": "string", "pattern": "^[a-z]{1,5}$"}}, '
            '"required": ["room"], "additionalProperties": false, '
            '"x-guidance": {"whitespace_pattern": " ?", "item_separator": ","}}'.replace("@", ""),
            CALL.replace('":', '" ?:').replace(r"\{", r"\{ ?").replace(r"\}", r" ?\}"),
        ),
        # The end of one part is where the next begins.
        ('start: "<b>" body\nbody[suffix="</b>"]: /[a-z<\\/]{0,9}/', "<b>[a-z<\\/]{0,9}</b>"),
    ],
)
def test_grammars_in_lark_and_gbnf(grammar: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "grammar"
    file.write_text(grammar)
    form = chosen_format(ChatConfig(grammar=str(file)))
    assert form is not None
    for seed in range(8):
        assert re.fullmatch(expected, text := answer(form, seed)), text


@pytest.mark.parametrize("reasoning", FORMATS, ids=lambda one: one.close)
@pytest.mark.parametrize("is_thinking", [True, False])
def test_reasoning_comes_before_the_answer(reasoning: Any, is_thinking: bool) -> None:
    """Also where markers are ordinary text."""
    form = chosen_format(ChatConfig(regex="[0-9]{3}"))
    assert form is not None
    grammar = output_grammar(form, reasoning, {}, is_thinking=is_thinking)
    constraint = Constraint(TRIE, grammar, len(PIECES))
    opening = "" if is_thinking else reasoning.opens[0]
    head = reasoning.heads[0] if reasoning.heads else ""
    for byte in f"{opening}hm 7 {reasoning.close}\n\n{head}123".encode():
        token = PIECES.index(bytes([byte]))
        assert constraint.allowed[token]
        constraint.accept(token)
    assert constraint.allowed.nonzero().flatten().tolist() == [STOP]


def test_control_tokens_mark_reasoning() -> None:
    form = chosen_format(ChatConfig(regex="[0-9]{3}"))
    assert form is not None
    think = next(one for one in FORMATS if one.close == "</think>")
    for seed in range(5):
        text = walk(output_grammar(form, think, CONTROL, is_thinking=True), seed)
        assert re.fullmatch(r"(?s).*</think>[ \n]{0,4}[0-9]{3}", text)


def test_the_instruction_is_in_the_system_prompt() -> None:
    form = schema_format('{"type": "null"}')
    question = {"role": "user", "content": "Why?"}
    system = {"role": "system", "content": "Be brief."}
    seen: list[Any] = []
    encode = form.instructed(seen.append)  # type: ignore[arg-type]
    encode([question])
    encode([system, question])
    assert '{"type": "null"}' in form.instruction
    assert seen[0] == [{"role": "system", "content": form.instruction}, question]
    assert seen[1] == [{**system, "content": f"Be brief.\n\n{form.instruction}"}, question]
    silent = schema_format('{"type": "null"}', has_instruction=False)
    silent.instructed(seen.append)([question])  # type: ignore[arg-type]
    assert seen[2] == [question]


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ('{"not": {}}', "#:"),
        (
            '{"properties": {"a/b": {"items": {"not": {"type": "string"}}}}}',
            "#/properties/a~1b/items:",
        ),
        ('{"anyOf": [{"type": "null"}, {"type": "odd"}]}', "#/anyOf/1:"),
        ('{"$ref": "#/$defs/x", "$defs": {"x": {"type": "odd"}}}', "#/$defs/x:"),
    ],
)
def test_what_cannot_be_enforced_is_named(schema: str, path: str) -> None:
    with pytest.raises(UsageError) as caught:
        schema_format(schema)
    assert f"cannot be enforced at {path}" in caught.value.message


@pytest.mark.parametrize("schema", ["{", '{"a": }', "{" * 100_000, '{"type": 5}'])
def test_invalid_schemas(schema: str) -> None:
    with pytest.raises(UsageError):
        schema_format(schema)


def test_schema_files(tmp_path: Path) -> None:
    file = tmp_path / "point.json"
    file.write_text('{"type": "null"}')
    assert schema_format(str(file)).name == "point.json"
    file.write_text("[1]")
    with pytest.raises(UsageError, match="not a JSON object"):
        schema_format(str(file))
    with pytest.raises(FileSystemError):
        schema_format(str(tmp_path / "missing.json"))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"schema": "{}", "json_object": True}, ("--schema", "--json-object")),
        ({"regex": "a", "grammar": "x"}, ("--regex", "--grammar")),
    ],
)
def test_two_formats_are_a_usage_error(options: dict[str, Any], names: tuple[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        chosen_format(ChatConfig(**options))
    assert all(name in caught.value.message for name in names)


@pytest.mark.fault(49)
@pytest.mark.parametrize(
    ("regex", "reason"),
    [("(", "unclosed group"), ("[", "unclosed character class"), ("a{2,1}", "repetition count")],
)
def test_invalid_regular_expressions(regex: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"--regex.*{reason}"):
        chosen_format(ChatConfig(regex=regex))


@pytest.mark.fault(49)
def test_invalid_grammars(tmp_path: Path) -> None:
    for text in ("start: missing", 'root ::= "a', ""):
        file = tmp_path / "grammar"
        file.write_text(text)
        for grammar in (str(file), text):
            with pytest.raises(UsageError, match="--grammar"):
                chosen_format(ChatConfig(grammar=grammar))
