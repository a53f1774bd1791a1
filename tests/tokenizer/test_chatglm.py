"""ChatGLM's pieces for white space, and its control tokens."""

import io
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer import Tokenizer

CORPUS = ["hello world, 你好世界 def f(x): return x", "[Round 1] 问：答： the world of words  x"]
BLANKS = [f"<|blank_{length}|>" for length in range(2, 81)]
CONTROL = ["[MASK]", "[gMASK]", "<sop>", "<eop>"]
CONFIG = {
    "tokenizer_class": "ChatGLMTokenizer",
    "bos_token": "<sop>",
    "eos_token": "<eop>",
    "num_image_tokens": 0,
}


@cache
def trained(kind: str, own: bool = True) -> bytes:
    """Return a vocabulary like ChatGLM-6B's ice_text.model; without `own`, lacking its pieces."""
    sentencepiece.set_min_log_level(2)
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 9),
        model_writer=file,
        model_type=kind,
        vocab_size=500,
        byte_fallback=True,
        hard_vocab_limit=False,
        character_coverage=0.98,
        user_defined_symbols=["<n>", "<|tab|>", *BLANKS, *CONTROL] if own else [],
    )
    return file.getvalue()


def preprocessed(text: str) -> str:
    """Return the text that ChatGLM-6B's own tokenizer passes to SentencePiece."""
    text = text.replace("\n", "<n>").replace("\t", "<|tab|>")
    for length in range(80, 1, -1):
        text = text.replace(" " * length, f"<|blank_{length}|>")
    return text


def postprocessed(text: str) -> str:
    """Return the text that it makes of SentencePiece's decoded text."""
    text = text.replace("<n>", "\n").replace("<|tab|>", "\t")
    for length in range(2, 81):
        text = text.replace(f"<|blank_{length}|>", " " * length)
    return text


PARTS = st.sampled_from(
    [
        " ",
        "  ",
        "   ",
        " " * 79,
        " " * 80,
        " " * 81,
        " " * 163,
        "\n",
        "\t",
        "<n>",
        "<|blank_4|>",
        "<|blank_81|>",
        "<|tab|>",
        "<|tab",
        "<",
        "n>",
        "world",
        "你好",
        "\x00",
        "\U0001f600",
        "\r",
    ]
)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_white_space_pieces_equal_the_original(kind: str) -> None:
    ours = Tokenizer.from_sentencepiece(trained(kind), CONFIG)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=trained(kind))

    @settings(max_examples=100, deadline=None)
    @given(st.lists(PARTS, max_size=12).map("".join))
    @example("Hello<|blank_4|>world!")
    @example("\n\n\t    x\n")
    def check(text: str) -> None:
        ids = ours.encode(text)
        assert ids == theirs.encode(preprocessed(text))
        assert ours.decode(ids) == postprocessed(theirs.decode(ids))
        stream = ours.stream()
        assert "".join(map(stream.push, ids)) + stream.flush() == ours.decode(ids)

    check()
    spaces = [
        theirs.piece_to_id(piece) for piece in ("<|blank_4|>", "<n>", "<|blank_4|>", "<|tab|>")
    ]
    assert ours.decode(spaces) == "    \n    \t"
    for text in ("\n" * 50_000, " " * 200_000, " \n\t" * 50_000):
        assert ours.decode(ours.encode(text)) == postprocessed(
            theirs.decode(theirs.encode(preprocessed(text)))
        )


def test_decoding_any_ids_equals_the_original() -> None:
    ours = Tokenizer.from_sentencepiece(trained("unigram"), CONFIG)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=trained("unigram"))
    plain = [
        n for n in range(theirs.vocab_size()) if not re.search(r"[\[<>|]", theirs.id_to_piece(n))
    ]
    spaces = [theirs.piece_to_id(piece) for piece in ("<n>", "<|tab|>", *BLANKS)]

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.one_of(st.sampled_from(plain), st.sampled_from(spaces)), max_size=9))
    def check(ids: list[int]) -> None:
        assert ours.decode(ids, skip_special=True) == postprocessed(theirs.decode(ids))

    check()


def test_control_tokens_that_are_pieces(tmp_path: Path) -> None:
    (tmp_path / "ice_text.model").write_bytes(trained("unigram"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    ours = Tokenizer.load(tmp_path)
    special = set(ours.special_tokens.values())
    assert set(CONTROL) <= ours.special_tokens.keys()
    assert (ours.bos_id, *ours.eos_ids) == tuple(map(ours.special_tokens.get, CONTROL[2:]))
    assert not special & set(ours.encode("[gMASK]<sop>"))
    ids = ours.encode_rendered("hello[gMASK]<sop>", [])
    assert ids[-2:] == [ours.special_tokens["[gMASK]"], ours.special_tokens["<sop>"]]
    with pytest.raises(BadModelFile, match="num_image_tokens"):
        Tokenizer.from_sentencepiece(trained("unigram"), CONFIG | {"num_image_tokens": 20000})


@pytest.mark.parametrize("config", [{}, {"tokenizer_class": "LlamaTokenizer"}])
def test_other_models_are_unchanged(config: dict[str, Any]) -> None:
    ours = Tokenizer.from_sentencepiece(trained("bpe", own=False), config)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=trained("bpe", own=False))
    assert ours.vocab_size == theirs.vocab_size()
    assert ours.encode("a\n\t    <n>") == theirs.encode("a\n\t    <n>")


def test_control_tokens_that_follow_the_pieces() -> None:
    """In ChatGLM2 and 3 their ids follow those of the vocabulary."""
    data = trained("bpe", own=False)
    ours = Tokenizer.from_sentencepiece(data, {"tokenizer_class": "ChatGLMTokenizer"})
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    first = theirs.vocab_size()
    assert ours.vocab_size == first + 9
    ids = ours.encode_rendered("[gMASK]sop<|user|>\n hello<|assistant|>", [])
    assert ids == [first + 1, first + 3, first + 6, *theirs.encode("\n hello"), first + 7]
    assert ours.encode("[gMASK]sop<|user|>") == theirs.encode("[gMASK]sop<|user|>")
    assert ours.eos_ids == (theirs.eos_id(),)
