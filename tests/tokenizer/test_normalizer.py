"""Normalizers and pre-tokenizers whose results depend on places and on empty matches."""

import json
import time
from typing import Any

import pytest
import tokenizers

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer import Tokenizer

SYMBOLS = sorted(set("▁abcxyzhelowrdHK é!\n\u0301ﬁfi"))
VOCAB = {text: n for n, text in enumerate([*SYMBOLS, "▁a", "he", "▁▁", "<t>", "<unk>"])}
TEXTS = (
    *(" hello", "hello", "  a b", "a", "ba", "aab", "<t> hello", " <t>hello", "b hello", "haah"),
    *("hh h", "abab aa", "é e\u0301 ﬁ", "\n hello\n", "", " ", "he he", "xhello", "\u0301e a"),
)


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def strip(left: bool, right: bool) -> dict[str, Any]:
    return {"type": "Strip", "strip_left": left, "strip_right": right}


def several(*normalizers: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(normalizers)}


def metaspace(scheme: str, split: bool = True) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def split_first(pattern: dict[str, str], behavior: str, invert: bool = False) -> dict[str, Any]:
    split = {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
    return {"type": "Sequence", "pretokenizers": [split, metaspace("first")]}


PREPEND = {"type": "Prepend", "prepend": "▁"}
NORMALIZERS = [
    None,
    strip(True, True),
    strip(False, True),
    replace({"String": " "}, ""),
    replace({"String": " "}, "▁"),
    replace({"String": "he"}, "h"),
    replace({"Regex": " +"}, "▁"),
    replace({"Regex": "a*$"}, "x"),
    replace({"Regex": "x*"}, "y"),
    replace({"Regex": "|a"}, "y"),
    replace({"Regex": "(?=a)"}, "z"),
    replace({"Regex": "^h|o$"}, ""),
    {"type": "NFKD"},
    several(PREPEND, replace({"String": "▁h"}, "x")),
    several(strip(True, False), replace({"Regex": "|a"}, "y"), PREPEND),
    several({"type": "NFC"}, replace({"Regex": r"\b"}, "x"), strip(True, True)),
]
PRE_TOKENIZERS = [
    *(metaspace("first"), metaspace("first", split=False), metaspace("always")),
    split_first({"String": " "}, "Removed"),
    split_first({"String": "h"}, "Removed", invert=True),
    split_first({"Regex": "a*"}, "Removed"),
    split_first({"Regex": "^ *"}, "MergedWithNext"),
    split_first({"Regex": "h|"}, "MergedWithPrevious", invert=True),
    split_first({"Regex": "|h"}, "Removed"),
    split_first({"Regex": "x*$"}, "Contiguous"),
    split_first({"Regex": "(?=l)"}, "Isolated"),
]


def spec_of(normalizer: Any, pre_tokenizer: Any) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    added = [
        {"id": VOCAB["<t>"], "content": "<t>", **flags, "normalized": False, "special": True},
        {"id": VOCAB["b"], "content": "b", **flags, "normalized": True, "special": False},
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": metaspace("first"),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": VOCAB,
            "merges": ["▁ a", "h e", "▁ ▁"],
        },
    }


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=range(len(NORMALIZERS)))
def test_ids_equal_the_library(normalizer: Any) -> None:
    for pre_tokenizer in PRE_TOKENIZERS:
        spec = spec_of(normalizer, pre_tokenizer)
        ours = Tokenizer.from_json(spec)
        theirs = tokenizers.Tokenizer.from_str(json.dumps(spec))
        for text in TEXTS:
            wanted = theirs.encode(text, add_special_tokens=False).ids
            assert ours.encode_rendered(text, []) == wanted, (text, pre_tokenizer)


@pytest.mark.parametrize(
    ("normalizer", "text"),
    [
        # The beginning of a line, which must have a character unless it is the only one.
        ({"type": "Replace", "pattern": {"Regex": "^"}, "content": "a"}, "he\n h\n"),
        ({"type": "Replace", "pattern": {"Regex": "^"}, "content": "a"}, "\n"),
        ({"type": "Replace", "pattern": {"Regex": "^h|[^h]$|\\^"}, "content": "a"}, "h^e\nhe\n"),
        # A character that a form has made is joined with the next one, or with a prefix.
        (several({"type": "NFKC"}, strip(True, True)), "ﬁ\u0301he é"),
        (several({"type": "Prepend", "prepend": "a"}, {"type": "NFKC"}), "\u0301x"),
        (several({"type": "Prepend", "prepend": "a"}, {"type": "NFC"}), "\u0301h e"),
    ],
)
def test_ids_of_particular_texts_equal_the_library(normalizer: Any, text: str) -> None:
    for pre_tokenizer in PRE_TOKENIZERS:
        spec = spec_of(normalizer, pre_tokenizer)
        wanted = tokenizers.Tokenizer.from_str(json.dumps(spec)).encode(text)
        assert Tokenizer.from_json(spec).encode_rendered(text, []) == wanted.ids, pre_tokenizer


def test_an_added_token_of_which_nothing_is_left_is_not_found() -> None:
    """`tokenizers` finds it between any two characters."""
    ours = Tokenizer.from_json(spec_of(replace({"String": "b"}, ""), None))
    assert ours.encode_rendered("abcb a", []) == [VOCAB[one] for one in "ac a"]


FIFTY = [replace({"String": "a"}, "a" * 50)] * 5
GROWING = {
    "literal": several(*FIFTY),
    "pattern": several(*(replace({"Regex": "a"}, "a" * 50) for _ in range(5))),
    "empty matches": several(*(replace({"Regex": "(?=a)"}, "a" * 4000) for _ in range(3))),
    "long": replace({"String": "a"}, "a" * 4000),
    "prefixes": several(*({"type": "Prepend", "prepend": "a" * 4000} for _ in range(60))),
}


@pytest.mark.fault(34)
@pytest.mark.parametrize("name", GROWING)
def test_growing_text_is_stopped(name: str) -> None:
    start = time.process_time()
    with pytest.raises(BadModelFile, match="longer"):
        Tokenizer.from_json(spec_of(GROWING[name], metaspace("never"))).encode("a" * 100)
    assert time.process_time() - start < 10


def test_growth_of_unicode_forms_is_allowed() -> None:
    """The compatibility form of one character has 18."""
    normalizer = several({"type": "NFKC"}, replace({"String": " "}, "▁"), PREPEND)
    ours = Tokenizer.from_json(spec_of(normalizer, metaspace("never")))
    assert len(ours.encode("\ufdfa" * 10_000)) > 100_000


def test_empty_matches_take_linear_time() -> None:
    ours = Tokenizer.from_json(spec_of(replace({"Regex": "x*"}, "y"), None))
    start = time.process_time()
    assert len(ours.encode("h" * 50_000)) == 100_001
    assert time.process_time() - start < 20
