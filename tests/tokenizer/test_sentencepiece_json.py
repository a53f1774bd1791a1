"""`tokenizer.json` of SentencePiece vocabularies: ids and text equal those of `tokenizers`."""

import base64
import json
import re
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer import Tokenizer
from swiftchat.tokenizer.core.unigram import score_as_tokenizers_parses_it
from swiftchat.tokenizer.sentencepiece.model import SentencePieceModel
from tests.support.sentencepiece_models import CORPUS, TEXTS, pair, trained


def replace(pattern: Any, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(key: str, *steps: Any) -> dict[str, Any]:
    return {"type": "Sequence", key: list(steps)}


def metaspace(prepend: str, split: bool) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prepend, "split": split}


STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
BYTES = [replace({"String": "▁"}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
LEGACY = sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace({"String": " "}, "▁"))
ADDED = [
    {
        "id": number,
        "content": content,
        "special": True,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }
    for number, content in enumerate(["<unk>", "<s>", "</s>"])
]


def added(first: int, **flags: bool) -> list[dict[str, Any]]:
    user = {"id": first, "content": "<usr>", "special": False}
    return ADDED + [ADDED[0] | t | flags for t in (user, {"id": first + 1, "content": "<ctl>"})]


def bpe_json(**changes: Any) -> dict[str, Any]:
    """Return the `tokenizer.json` of a trained BPE, with merges derived as in transformers."""
    model = SentencePieceModel.read(trained("bpe bytes"))
    vocab = {piece.text: number for number, piece in enumerate(model.pieces)}
    merges = []
    for piece, number in vocab.items():
        halves = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        found = [half for half in halves if half[0] in vocab and half[1] in vocab]
        score = model.pieces[number].score
        merges += [(-score, number, list(half)) for half in found]
    merges.sort()
    spec = {
        "version": "1.0",
        "added_tokens": added(len(vocab)),
        "normalizer": LEGACY,
        "pre_tokenizer": None,
        "decoder": sequence("decoders", *BYTES, STRIP),
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": [merge[2] for merge in merges],
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }
    return spec | changes


def unigram_json(name: str, **changes: Any) -> dict[str, Any]:
    model = SentencePieceModel.read(trained(name))
    charsmap = base64.b64encode(model.normalizer.charsmap).decode()
    rules = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    spec = {
        "version": "1.0",
        "added_tokens": added(len(model.pieces), lstrip=True, rstrip=False),
        "normalizer": sequence("normalizers", rules, replace({"Regex": " {2,}"}, " ")),
        "pre_tokenizer": metaspace("always", True),
        "decoder": metaspace("always", True),
        "model": {
            "type": "Unigram",
            "unk_id": 0,
            "byte_fallback": model.byte_ids is not None,
            "vocab": [[piece.text, piece.score] for piece in model.pieces],
        },
    }
    return spec | changes


def unigram_trained_by_tokenizers() -> Any:
    """Return a Unigram trained by `tokenizers`, whose scores are float64."""
    library = tokenizers.Tokenizer(tokenizers.models.Unigram())
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    library.decoder = tokenizers.decoders.Metaspace()
    library.train_from_iterator(
        CORPUS * 5,
        tokenizers.trainers.UnigramTrainer(
            vocab_size=150, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
        ),
    )
    spec = json.loads(library.to_str())
    return spec | {"added_tokens": added(len(spec["model"]["vocab"]))}


SPECS: dict[str, Any] = {
    "llama, legacy": lambda: bpe_json(),
    "llama, tokens after normalization": lambda: bpe_json(added_tokens=added(500, normalized=True)),
    "mistral": lambda: bpe_json(normalizer=None, pre_tokenizer=metaspace("first", False)),
    "split, always": lambda: bpe_json(normalizer=None, pre_tokenizer=metaspace("always", True)),
    "gemma": lambda: bpe_json(
        normalizer=replace({"String": " "}, "▁"),
        pre_tokenizer={
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        decoder=sequence("decoders", *BYTES),
    ),
    "t5": lambda: unigram_json("unigram nmt_nfkc"),
    "t5, words first": lambda: unigram_json(
        "unigram nmt_nfkc",
        pre_tokenizer=sequence(
            "pretokenizers", {"type": "WhitespaceSplit"}, metaspace("always", True)
        ),
    ),
    "t5, stripped": lambda: unigram_json(
        "unigram nmt_nfkc",
        normalizer=sequence(
            "normalizers",
            {"type": "NFKC"},
            {"type": "Strip", "strip_left": False, "strip_right": True},
            replace({"Regex": " {2,}"}, "▁"),
        ),
        pre_tokenizer=metaspace("never", True),
        decoder=metaspace("never", True),
    ),
    "unigram bytes": lambda: unigram_json("unigram bytes"),
    "unigram trained by tokenizers": unigram_trained_by_tokenizers,
}


@pytest.mark.parametrize("name", SPECS)
def test_ids_and_text_equal_the_library(name: str) -> None:
    spec = SPECS[name]()
    theirs = tokenizers.Tokenizer.from_str(json.dumps(spec))
    spec["added_tokens"] = [
        token | {"id": theirs.token_to_id(token["content"])} for token in spec["added_tokens"]
    ]
    ours = Tokenizer.from_json(spec)
    special = set(ours.special_tokens.values())

    @settings(max_examples=100, deadline=None)
    @given(TEXTS)
    @example(" the <usr> the <usr>")
    def check(text: str) -> None:
        expected = theirs.encode(text, add_special_tokens=False).ids
        # As in a rendered template, control tokens in the text are recognized.
        ids = ours.encode_rendered(text, [])
        assert ids == expected
        if not special & set(ids):
            assert ours.encode(text) == expected
        if "\ufffd" not in (decoded := theirs.decode(expected, skip_special_tokens=False)):
            assert ours.decode(expected) == decoded
        stream = ours.stream(skip_special=False)
        assert "".join(map(stream.push, ids)) + stream.flush() == ours.decode(ids)

    check()


@given(st.lists(st.floats(-20, -1e-9), min_size=4, max_size=4))
def test_scores_are_parsed_as_the_library_does(scores: list[float]) -> None:
    """The library rounds scores twice, which decides ties such as "a aa" and "aa a"."""
    names = ["<unk>", "a", "aa", "aaa", "b"]
    model = {"type": "Unigram", "unk_id": 0, "vocab": list(zip(names, [0.0, *scores], strict=True))}
    spec = json.loads(json.dumps({"version": "1.0", "model": model}))
    theirs = tokenizers.Tokenizer.from_str(json.dumps(spec | {"added_tokens": []}))
    parsed = json.loads(theirs.to_str())["model"]["vocab"]
    assert [score_as_tokenizers_parses_it(score) for score in scores] == [s for _, s in parsed[1:]]
    spec["decoder"] = metaspace("never", False)
    ours = Tokenizer.from_json(spec)
    for length in range(20):
        assert ours.encode("a" * length) == theirs.encode("a" * length).ids


def test_rendered_template_gives_the_same_ids_from_both_files() -> None:
    """A dummy prefix follows every control token, as in Llama 2's first tokenizer.json."""
    from_json = Tokenizer.from_json(bpe_json())
    from_model, theirs = pair("bpe bytes")
    parts = ["<s>", "</s>", "the", " the", " ", "  ", "\n", "你好"]

    def reference(part: str) -> list[int]:
        return [theirs.piece_to_id(part)] if part in parts[:2] else theirs.encode(part)

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.sampled_from(parts)).map("".join))
    def check(text: str) -> None:
        ids = from_model.encode_rendered(text, [])
        assert ids == from_json.encode_rendered(text, [])
        assert ids == [n for part in re.split("(<s>|</s>)", text) for n in reference(part)]

    check()


def test_control_tokens_in_text_are_ordinary_text() -> None:
    control = {0, 1, 2}
    for ours in (pair("bpe bytes")[0], Tokenizer.from_json(bpe_json())):
        ids = ours.encode("<s>a</s> <unk>")
        assert not control & set(ids)
        assert ours.decode(ids) == "<s>a</s> <unk>"
        assert ours.encode_rendered("<s>a</s>", [])[0] == 1
        assert ours.encode_rendered("<s>a</s>", [(0, 3)])[-1] == 2
        assert ours.encode_rendered("<s>a</s>", [(0, 3)])[0] != 1
    # One control token is matched in normalized text, between ranges of content.
    spec = bpe_json(added_tokens=[*ADDED[:2], ADDED[2] | {"normalized": True}])
    ids = Tokenizer.from_json(spec).encode_rendered("<s> </s>hi </s>", [(3, 10)])
    assert ids.count(2) == 1
    assert ids[-1] == 2


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"model": {"type": "Unigram", "vocab": {}}}, "model.vocab"),
    ({"model": {"type": "Unigram", "vocab": [["a"]]}}, "model.vocab[0]"),
    ({"model": {"type": "Unigram", "vocab": [["a", "b"]]}}, "model.vocab[0]"),
    ({"model": {"type": "Unigram", "vocab": [["a", 1.0], ["a", 2.0]]}}, "model.vocab[1]"),
    ({"model": {"type": "Unigram", "vocab": [["a", 1.0]], "unk_id": 1}}, "model.unk_id"),
    ({"model": {"type": "Unigram", "vocab": [["<0x00>", 1.0]], "byte_fallback": True}}, "1 of 256"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "charsmap"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}}, "charsmap"),
    ({"normalizer": {"type": "Lowercase"}}, "Lowercase"),
    ({"normalizer": replace({"Regex": "("}, "")}, "pattern"),
    ({"pre_tokenizer": metaspace("sometimes", True)}, "prepend_scheme"),
    ({"decoder": sequence("decoders", *BYTES, STRIP | {"stop": 1})}, "strips"),
    ({"decoder": {"type": "WordPiece"}}, "WordPiece"),
]


@pytest.mark.parametrize(("changes", "named"), INVALID)
def test_invalid_field_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(BadModelFile) as caught:
        Tokenizer.from_json(bpe_json(added_tokens=[]) | changes)
    assert named in str(caught.value)
