"""Random walks through what a grammar allows always end in a text of its language."""

import json
import random
import re

import pytest
from llguidance import LLMatcher
from torch import Tensor

from swiftchat.engine.api.vocabulary import Vocabulary
from swiftchat.engine.schedule.constraint import Constraint
from swiftchat.engine.schedule.token_trie import TokenTrie
from swiftchat.errors import UsageError

STOP = 0
WORDS = [
    b"{",
    b"}",
    b'{"',
    b'":',
    b'", "',
    b"tru",
    b"true",
    b"null",
    b"\xc3\xa9",
    b"name",
    b"<end>",
]
PIECES = (b"<stop>", b"<control>", *(bytes([i]) for i in range(256)), *WORDS)
VOCABULARY = Vocabulary(PIECES, special=(0, 1), stop_ids=(STOP,))
TRIE = TokenTrie(VOCABULARY)


def new(grammar: str) -> Constraint:
    return Constraint(TRIE, grammar, len(PIECES))


def ids(allowed: Tensor) -> list[int]:
    found: list[int] = allowed.nonzero().flatten().tolist()
    return found


def walk(grammar: str, seed: int, max_tokens: int = 2000) -> bytes:
    """Return a random text of the grammar; the stop token is preferred, so that it ends."""
    constraint, choose, text = new(grammar), random.Random(seed), b""
    for _ in range(max_tokens):
        allowed = ids(constraint.allowed)
        token = STOP if STOP in allowed else choose.choice(allowed)
        constraint.accept(token)
        if token == STOP:
            return text
        text += PIECES[token]
    raise AssertionError("the walk did not end")


def test_json_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    grammar = LLMatcher.grammar_from_json_schema(schema)
    for seed in range(20):
        found = json.loads(walk(grammar, seed))
        assert {"name", "age"} <= found.keys() <= {"name", "age", "tags"}
        assert len(found["name"]) <= 8 and 0 <= found["age"] <= 150
        assert set(found.get("tags", [])) <= {"a", "b"}


def test_regex() -> None:
    pattern = r"[A-C]{2,4}-[0-9]{3}"
    grammar = LLMatcher.grammar_from_regex(pattern)
    assert all(re.fullmatch(pattern, walk(grammar, seed).decode()) for seed in range(20))


def test_special_tokens_are_no_text() -> None:
    """Their bytes would match, but only ordinary tokens may spell them."""
    constraint = new(LLMatcher.grammar_from_regex("<control>"))
    allowed = ids(constraint.allowed)
    assert allowed == [PIECES.index(b"<")]


def test_ids_beyond_the_vocabulary_are_not_allowed() -> None:
    grammar = LLMatcher.grammar_from_regex(".*")
    allowed = Constraint(TRIE, grammar, len(PIECES) + 70).allowed
    assert allowed.shape == (len(PIECES) + 70,) and not allowed[len(PIECES) :].any()
    assert Constraint(TRIE, grammar, 100).allowed.shape == (100,)


@pytest.mark.parametrize("grammar", ["", "{", '{"grammars": []}', "start: missing", "start: /(/"])
def test_a_bad_grammar_is_a_usage_error(grammar: str) -> None:
    with pytest.raises(UsageError, match="grammar"):
        new(grammar)


def test_a_token_that_is_not_allowed() -> None:
    constraint = new(LLMatcher.grammar_from_regex("[0-9]"))
    with pytest.raises(UsageError, match="grammar"):
        constraint.accept(PIECES.index(b"a"))


@pytest.mark.parametrize(
    ("special", "stop_ids"), [((-1,), (0,)), ((len(PIECES),), (0,)), ((), (len(PIECES),)), ((), ())]
)
def test_invalid_vocabularies(special: tuple[int, ...], stop_ids: tuple[int, ...]) -> None:
    with pytest.raises(UsageError):
        Vocabulary(PIECES, special, stop_ids)


def test_an_answer_that_has_begun_goes_on() -> None:
    grammar = LLMatcher.grammar_from_regex(r'\{"a": [0-9]+\}')
    whole, begun = (Constraint(TRIE, grammar, len(PIECES), text) for text in ("", '{"a": 1'))
    assert whole.allowed.tolist() != begun.allowed.tolist()
    whole.accept(*TRIE.tokenize(b'{"a": 1'))
    assert whole.allowed.tolist() == begun.allowed.tolist()
    with pytest.raises(UsageError, match="does not begin with"):
        Constraint(TRIE, grammar, len(PIECES), '{"b')
