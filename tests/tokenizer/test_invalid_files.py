"""Mutated and invalid vocabulary files: `BadModelFile` in bounded time, or valid ids."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer import Tokenizer
from swiftchat.tokenizer.core import matching

# Limit of processor time to load and encode; an exponential pattern is stopped after a second.
_MAX_CPU_S = 20.0
TEXT = "abab <x> aab 12\n  Größe 你好" + "a" * 300 + " " * 300

VOCAB = {symbol: n for n, symbol in enumerate(["a", "b", "Ġ", "ab", "aa", "abab", "<x>"])}
JSON_BPE: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [
        {"id": 6, "content": "<x>", "special": True, "lstrip": False, "normalized": False},
        {"id": 7, "content": "<y>", "special": False, "rstrip": True, "single_word": True},
    ],
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "NFC"},
            {"type": "Replace", "pattern": {"String": "x"}, "content": "y"},
            {"type": "Prepend", "prepend": "a"},
        ],
    },
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {
                "type": "Split",
                "pattern": {"Regex": r"\s+|\w+"},
                "behavior": "Isolated",
                "invert": False,
            },
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ],
    },
    "decoder": {"type": "ByteLevel"},
    "model": {
        "type": "BPE",
        "vocab": VOCAB,
        "merges": ["a b", "a a", ["ab", "ab"]],
        "unk_token": None,
        "ignore_merges": False,
        "byte_fallback": False,
        "fuse_unk": False,
    },
}
JSON_UNIGRAM: dict[str, Any] = {
    "added_tokens": [],
    "normalizer": {"type": "Precompiled", "precompiled_charsmap": ""},
    "pre_tokenizer": {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always",
        "split": True,
    },
    "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
    "model": {
        "type": "Unigram",
        "unk_id": 0,
        "byte_fallback": False,
        "vocab": [["<unk>", 0.0], ["▁", -1.0], ["a", -2.0], ["ab", -2.5], ["▁a", -3]],
    },
}
CONFIG: dict[str, Any] = {
    "tokenizer_class": "GPT2Tokenizer",
    "add_prefix_space": False,
    "bos_token": {"content": "<x>"},
    "eos_token": "<x>",
    "added_tokens_decoder": {"6": {"content": "<x>", "special": True}},
    "additional_special_tokens": ["<x>"],
    "chat_template": "{{ messages }}",
}
RANKS = b"".join(b"%s %d\n" % (base64.b64encode(bytes([byte])), byte) for byte in range(256))

WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 9),
    st.sampled_from([2**63, -(10**30), 1e308, 1.5]),
    st.floats(),
    st.text(max_size=4),
    st.just("a" * 5000),
    st.just([]),
    st.just({}),
    st.lists(st.one_of(st.integers(0, 9), st.text(max_size=3)), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(-1, 9), max_size=3),
    st.sampled_from(
        [
            "ByteLevel",
            "Metaspace",
            "Sequence",
            "Split",
            "BPE",
            "Unigram",
            "WordPiece",
            "Removed",
            "a b",
            "b a",
            "(",
            "(a|aa)+$",
            "(?:a*)*b",
            "<x>",
            "\ud800",
            "",
        ]
    ),
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    for key, part in inner:
        yield from _paths(part, (*path, key))


def _mutated(data: st.DataObject, document: Any) -> Any:
    """Return the document with up to three values replaced, removed or duplicated."""
    document = json.loads(json.dumps(document))
    for _ in range(data.draw(st.integers(1, 3))):
        paths = list(_paths(document))
        if not paths:
            break
        *path, last = data.draw(st.sampled_from(paths))
        holder = document
        for key in path:
            holder = holder[key]
        how = data.draw(st.sampled_from(["replace", "replace", "remove", "duplicate"]))
        if how == "remove":
            del holder[last]
        elif how == "duplicate" and isinstance(holder, list):
            holder.append(holder[last])
        else:
            holder[last] = data.draw(WRONG)
    return document


def _assert_rejected_or_valid(build: Callable[[], Tokenizer]) -> None:
    """Assert that loading raises `BadModelFile`, or ids are valid and of no control token."""
    start = time.process_time()
    try:
        tokenizer = build()
        ids = tokenizer.encode(TEXT)
        tokenizer.decode(ids)
        assert not set(ids) & set(tokenizer.special_tokens.values())
        assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)
    except BadModelFile:
        pass
    assert time.process_time() - start < _MAX_CPU_S


MUTATED = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("document", [JSON_BPE, JSON_UNIGRAM], ids=["bpe", "unigram"])
def test_unmutated_documents_are_valid(document: dict[str, Any]) -> None:
    assert Tokenizer.from_json(document).encode("ab a")


@MUTATED
@given(st.data())
def test_mutated_files_beside_the_vocabulary(data: st.DataObject) -> None:
    documents = {
        "vocab.json": VOCAB,
        "tokenizer_config.json": CONFIG,
        "special_tokens_map.json": {"pad_token": "<x>"},
        "added_tokens.json": {"<z>": 9},
        "generation_config.json": {"eos_token_id": [6]},
    }
    mutated = _mutated(data, documents)
    files = {name: json.dumps(value).encode() for name, value in mutated.items()}
    files["merges.txt"] = data.draw(
        st.sampled_from(["a b\na a\n", "a", "a b c", "z z", "\x00 a"])
    ).encode()
    if "vocab.json" in files:
        _assert_rejected_or_valid(lambda: Tokenizer.from_files(files))
    files.pop("vocab.json", None)
    files |= {"qwen.tiktoken": RANKS}
    _assert_rejected_or_valid(lambda: Tokenizer.from_files(files))


@MUTATED
@given(st.data())
def test_truncated_and_changed_rank_files(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(RANKS)))
    middle = data.draw(st.binary(max_size=4))
    num_removed = data.draw(st.integers(0, 4))
    rest = RANKS[at + num_removed :] if data.draw(st.booleans()) else b""
    files = {"qwen.tiktoken": RANKS[:at] + middle + rest}
    _assert_rejected_or_valid(lambda: Tokenizer.from_files(files))


@pytest.mark.fault(34)
def test_cyclic_merges_terminate() -> None:
    """Each merge makes a longer token, so merging ends."""
    merges = ["a b", "b a", "ab a", "a ba", "aba b", "ab ab", "a bab"]
    vocab = {token: n for n, token in enumerate(["a", "b", "ab", "ba", "aba", "abab"])}
    model = {"type": "BPE", "vocab": vocab, "merges": merges * 3}
    spec = JSON_BPE | {"added_tokens": [], "model": model, "normalizer": None}
    tokenizer = Tokenizer.from_json(spec)
    assert tokenizer.decode(tokenizer.encode("ab" * 5000)) == "ab" * 5000


@pytest.mark.fault(34)
@pytest.mark.parametrize(
    ("pattern", "limit_s"),
    # The limit is waited out: once in full.
    [("(a|aa)+$", matching._SECONDS), ("(?:a+)+c", 0.1), ("(?=(a+)+c)a", 0.1)],
)
def test_exponential_patterns_are_stopped(
    pattern: str, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "_SECONDS", limit_s)
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    spec = JSON_BPE | {"pre_tokenizer": split, "normalizer": None}
    start = time.process_time()
    with pytest.raises(BadModelFile, match="pattern"):
        Tokenizer.from_json(spec).encode("a" * 4000 + "d")
    assert time.process_time() - start < _MAX_CPU_S


@pytest.mark.fault(34)
@pytest.mark.parametrize(
    "pattern",
    [
        "(?:(?:(?:a?){500}){500}){500}b",
        "(?:(?:a?|b|c){500}){500}d",
        "[]|)(](?:(?:a?|b){500}){500}c",
        "|".join(["a{500}"] * 9),
        "(?R)a|b",
        "(?1)(a|(?1))",
    ],
)
def test_patterns_that_need_too_much_memory_are_rejected(pattern: str) -> None:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    with pytest.raises(BadModelFile, match="pattern repeats"):
        Tokenizer.from_json(JSON_BPE | {"pre_tokenizer": split})


@pytest.mark.fault(34)
def test_large_ids_allocate_no_table() -> None:
    spec = JSON_BPE | {"model": JSON_BPE["model"] | {"vocab": {**VOCAB, "zz": (1 << 24) - 1}}}
    spec["added_tokens"] = JSON_BPE["added_tokens"][:1]
    assert Tokenizer.from_json(spec).vocab_size == 1 << 24
    for huge in (1 << 24, 1 << 40, 10**400):
        spec["model"]["vocab"]["zz"] = huge
        with pytest.raises(BadModelFile, match=r"model\.vocab"):
            Tokenizer.from_json(spec)
