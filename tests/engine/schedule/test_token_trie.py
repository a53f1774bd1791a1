"""The ids of texts that a grammar forces, and the trie that llguidance makes of a vocabulary."""

from pathlib import Path

import pytest
from llguidance import LLMatcher

from swiftchat.engine.api.vocabulary import ConstraintSpec, Vocabulary
from swiftchat.engine.generation.grammars import Grammars
from swiftchat.engine.schedule.constraint import Constraint
from swiftchat.engine.schedule.token_trie import TokenTrie
from swiftchat.tokenizer import Tokenizer
from tests.support.fake_engine import END_ID, make_folder

# The longest pieces of "name" are "na" and "me"; these merges make "n", "am" and "e".
MERGES = ("a m", "n a", "m e", '" :')


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer.load(make_folder(tmp_path, merges=MERGES))


@pytest.fixture
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    special = tuple(tokenizer.special_tokens.values())
    return Vocabulary(tuple(tokenizer.token_bytes()), special, (END_ID,))


def test_without_a_tokenizer_the_longest_pieces_are_taken() -> None:
    pieces = (b"<s>", b"n", b"na", b"me", b"am", b"e", b'"', b'":')
    trie = TokenTrie(Vocabulary(pieces, (0,), (0,)))
    assert [pieces[i] for i in trie.tokenize(b'name":<s>name')] == [b"na", b"me", b'":']


def test_ids_are_those_of_the_tokenizer(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    trie, text = TokenTrie(vocabulary, tokenizer.encode), '"name": "\u00e9"'
    assert trie.tokenize(text.encode()) == tokenizer.encode(text)
    assert trie.tokenize(text.encode()) != TokenTrie(vocabulary).tokenize(text.encode())
    # Half of a character is no text for a tokenizer.
    assert trie.tokenize(b"am\xc3") == TokenTrie(vocabulary).tokenize(b"am\xc3")


def test_a_tokenizer_that_treats_the_beginning_of_a_text_differently() -> None:
    """As SentencePiece does, which begins with a space."""
    pieces = (b"<s>", b" ", b"\n", b"a", b" a", b"b")

    def encode(text: str) -> list[int]:
        return (
            [4, *map(pieces.index, (c.encode() for c in text[1:]))]
            if text[0] == "a"
            else [
                1,
                *(pieces.index(c.encode()) for c in text),
            ]
        )

    trie = TokenTrie(Vocabulary(pieces, (0,), (0,)), encode)
    assert trie.tokenize(b"ab") == [3, 5]
    # One whose ids never spell the text is not used.
    assert TokenTrie(Vocabulary(pieces, (0,), (0,)), lambda _: [5]).tokenize(b"ab") == [3, 5]


def test_the_trie_has_the_bytes_of_every_token(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    trie = TokenTrie(vocabulary).tokenizer
    for token, piece in enumerate(vocabulary.pieces):
        if piece == b"\xff":  # llguidance marks special tokens with it; no text has this byte
            continue
        assert trie.is_special_token(token) == (token in vocabulary.special)
        if token not in vocabulary.special:
            assert trie.decode_bytes([token]) == piece
            assert piece.decode("utf-8", "replace") == tokenizer.decode([token])


def test_forced_tokens_are_those_of_the_model(
    tmp_path: Path, tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    """Of a model directory; with another folder the longest pieces."""
    spec = ConstraintSpec(LLMatcher.grammar_from_regex('name":[0-9]'), vocabulary)
    for folder, text in ((tmp_path, ["n", "am", "e", '":']), (None, ["na", "me", '":'])):
        constraint = Grammars(folder, len(vocabulary.pieces)).constraint(spec)
        written: list[int] = []
        while forced := constraint.forced():
            assert constraint.allowed.nonzero().flatten().tolist() == [forced[0]]
            written += forced
            constraint.accept(*forced)
        assert [tokenizer.decode([token]) for token in written] == text
        assert constraint.allowed.sum() == 10
    assert Grammars(tmp_path / "missing", 999).constraint(spec).forced()


def test_ids_that_end_an_answer_are_no_text() -> None:
    """Also if the vocabulary has them as ordinary tokens."""
    pieces = (b"a", b"<e>", b"<", b"e", b">", b"\n")
    vocabulary = Vocabulary(pieces, special=(), stop_ids=(1,))
    trie = TokenTrie(vocabulary, lambda text: [1 if text == "<e>" else 0])
    assert trie.tokenize(b"<e>") == [2, 3, 4]
    constraint = Constraint(trie, LLMatcher.grammar_from_regex("(a|<e>)a?"), len(pieces))
    assert constraint.allowed.nonzero().flatten().tolist() == [0, 2]


def test_ids_beyond_the_models_are_not_forced(vocabulary: Vocabulary) -> None:
    spec = LLMatcher.grammar_from_regex("name")
    assert Constraint(TokenTrie(vocabulary), spec, 100).forced() == []
