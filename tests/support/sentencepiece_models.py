"""Small trained SentencePiece vocabularies, and strategies for test texts."""

import io
from functools import cache
from typing import Any

import sentencepiece
from hypothesis import strategies as st

from swiftchat.tokenizer import Tokenizer

CORPUS = [
    "the quick brown fox isn't over the lazy dog's 12345 tails, they're 67 890",
    "def f(x): return [x ** 2 for x in range(1000)] pass  # aaaa bbbb aaab abab",
    "Größe café naïve Việt нет да 你好世界 日本語 한국어 ﬁne ½ ｶﾞ the the them then there",
    "words within words withstand without outwith the words of another other mother",
]
# Trainer options by name. The rule "identity" changes nothing, "nmt_nfkc" embeds a charsmap.
TRAINED: dict[str, dict[str, Any]] = {
    "bpe bytes": {
        "model_type": "bpe",
        "byte_fallback": True,
        "vocab_size": 500,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
    "bpe unknown": {"model_type": "bpe", "vocab_size": 220},
    "bpe user-defined": {
        "model_type": "bpe",
        "vocab_size": 240,
        "control_symbols": ["<ctl>"],
        "user_defined_symbols": ["<usr>", "▁▁", "▁▁▁", "a b", "ther", "é"],
    },
    "bpe no prefix": {
        "model_type": "bpe",
        "vocab_size": 500,
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
    },
    "bpe suffix": {"model_type": "bpe", "vocab_size": 220, "treat_whitespace_as_suffix": True},
    "bpe whole": {
        "model_type": "bpe",
        "vocab_size": 240,
        "split_by_whitespace": False,
        "max_sentencepiece_length": 24,
    },
    "bpe digits": {
        "model_type": "bpe",
        "vocab_size": 500,
        "byte_fallback": True,
        "split_digits": True,
        "allow_whitespace_only_pieces": True,
        "remove_extra_whitespaces": False,
        "normalization_rule_name": "nfkc",
    },
    "unigram digits": {
        "model_type": "unigram",
        "vocab_size": 430,
        "byte_fallback": True,
        "split_digits": True,
        "allow_whitespace_only_pieces": True,
        "remove_extra_whitespaces": False,
        "normalization_rule_name": "identity",
    },
    "unigram nmt_nfkc": {"model_type": "unigram", "vocab_size": 180},
    "unigram bytes": {
        "model_type": "unigram",
        "vocab_size": 430,
        "byte_fallback": True,
        "normalization_rule_name": "nfkc_cf",
        "remove_extra_whitespaces": False,
    },
    "unigram user-defined": {
        "model_type": "unigram",
        "vocab_size": 190,
        "user_defined_symbols": ["<usr>", "▁▁", "a b", "ther", "é"],
        "control_symbols": ["<ctl>"],
    },
    "unigram no prefix": {"model_type": "unigram", "vocab_size": 180, "add_dummy_prefix": False},
}


@cache
def trained(name: str) -> bytes:
    """Return the bytes of the `tokenizer.model` that SentencePiece trains."""
    sentencepiece.set_min_log_level(2)
    file = io.BytesIO()
    options = {"character_coverage": 0.98, "hard_vocab_limit": False, **TRAINED[name]}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 5), model_writer=file, **options
    )
    return file.getvalue()


@cache
def pair(name: str) -> tuple[Tokenizer, Any]:
    """Return our tokenizer and the `sentencepiece` library's for the same file."""
    return (
        Tokenizer.from_sentencepiece(trained(name)),
        sentencepiece.SentencePieceProcessor(model_proto=trained(name)),
    )


PIECES = st.sampled_from(
    [
        "the",
        "ther",
        "other",
        "words",
        " ",
        "  ",
        "   ",
        "\n",
        "\t",
        "▁",
        "▁▁",
        "é",
        "e\u0301",
        "\u00a8",
        "ﬁ",
        "½",
        "ｶﾞ",
        "ｶ",
        "\u3099",
        "\u3000",
        "\xa0",
        "\u200b",
        "\x00",
        "\x7f",
        "a b",
        "a",
        "b",
        "q",
        "Ω",
        "你好",
        "한",
        "\U0001f600",
        "<usr>",
        "<ctl>",
        "<s>",
        "</s>",
        "<unk>",
        "<0x41>",
        "\u0300",
        "\u0345",
        "\U0010ffff",
    ]
)
TEXTS = st.one_of(
    st.lists(PIECES, max_size=16).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.text("ab t▁", max_size=40),
)
