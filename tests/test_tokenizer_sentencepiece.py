"""Ids and text equal to `sentencepiece`'s and `tokenizers`' for SentencePiece vocabularies."""

import base64
import contextlib
import io
import json
import random
import re
import time
from functools import cache
from typing import Any

import pytest
import sentencepiece
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer import Tokenizer
from swiftchat.tokenizer.sentencepiece_model import SentencePieceModel
from swiftchat.tokenizer.unigram import score_as_tokenizers_reads_it
from swiftchat.weights.gguf_tokenizer import tokenizer_files

CORPUS = [
    "the quick brown fox isn't over the lazy dog's 12345 tails, they're 67 890",
    "def f(x): return [x ** 2 for x in range(1000)] pass  # aaaa bbbb aaab abab",
    "Größe café naïve Việt нет да 你好世界 日本語 한국어 ﬁne ½ ｶﾞ the the them then there",
    "words within words withstand without outwith the words of another other mother",
]
# Name: options of the trainer. "identity" does nothing, "nmt_nfkc" is an embedded charsmap.
TRAINED: dict[str, dict[str, Any]] = {
    "bpe bytes": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 500,
                  "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "bpe unknown": {"model_type": "bpe", "vocab_size": 220},
    "bpe user-defined": {"model_type": "bpe", "vocab_size": 240, "control_symbols": ["<ctl>"],
                         "user_defined_symbols": ["<usr>", "▁▁", "▁▁▁", "a b", "ther", "é"]},
    "bpe no prefix": {"model_type": "bpe", "vocab_size": 500, "byte_fallback": True,
                      "add_dummy_prefix": False, "remove_extra_whitespaces": False},
    "bpe suffix": {"model_type": "bpe", "vocab_size": 220, "treat_whitespace_as_suffix": True},
    "bpe whole": {"model_type": "bpe", "vocab_size": 240, "split_by_whitespace": False,
                  "max_sentencepiece_length": 24},
    "bpe digits": {"model_type": "bpe", "vocab_size": 500, "byte_fallback": True,
                   "split_digits": True, "allow_whitespace_only_pieces": True,
                   "remove_extra_whitespaces": False, "normalization_rule_name": "nfkc"},
    "unigram digits": {"model_type": "unigram", "vocab_size": 430, "byte_fallback": True,
                       "split_digits": True, "allow_whitespace_only_pieces": True,
                       "remove_extra_whitespaces": False, "normalization_rule_name": "identity"},
    "unigram nmt_nfkc": {"model_type": "unigram", "vocab_size": 180},
    "unigram bytes": {"model_type": "unigram", "vocab_size": 430, "byte_fallback": True,
                      "normalization_rule_name": "nfkc_cf", "remove_extra_whitespaces": False},
    "unigram user-defined": {"model_type": "unigram", "vocab_size": 190,
                             "user_defined_symbols": ["<usr>", "▁▁", "a b", "ther", "é"],
                             "control_symbols": ["<ctl>"]},
    "unigram no prefix": {"model_type": "unigram", "vocab_size": 180, "add_dummy_prefix": False},
}  # fmt: skip


@cache
def trained(name: str) -> bytes:
    sentencepiece.set_min_log_level(2)
    file = io.BytesIO()
    options = {"character_coverage": 0.98, "hard_vocab_limit": False, **TRAINED[name]}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 5), model_writer=file, **options
    )
    return file.getvalue()


@cache
def pair(name: str) -> tuple[Tokenizer, Any]:
    return (
        Tokenizer.from_sentencepiece(trained(name)),
        sentencepiece.SentencePieceProcessor(model_proto=trained(name)),
    )


PIECES = st.sampled_from(
    ["the", "ther", "other", "words", " ", "  ", "   ", "\n", "\t", "▁", "▁▁", "é", "e\u0301",
     "\u00a8", "ﬁ", "½", "ｶﾞ", "ｶ", "\u3099", "\u3000", "\xa0", "\u200b", "\x00", "\x7f", "a b",
     "a", "b", "q", "Ω", "你好", "한", "\U0001f600", "<usr>", "<ctl>", "<s>", "</s>", "<unk>",
     "<0x41>", "\u0300", "\u0345", "\U0010ffff"]
)  # fmt: skip
TEXTS = st.one_of(
    st.lists(PIECES, max_size=16).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.text("ab t▁", max_size=40),
)


@pytest.mark.parametrize("name", TRAINED)
def test_trained_models(name: str) -> None:
    ours, theirs = pair(name)
    control = set(ours.special_tokens.values())

    @settings(max_examples=250, deadline=None)
    @given(TEXTS)
    @example("")
    @example("   ")
    @example("\u200b")
    @example("  the  <ctl>  <usr>  a b  ")
    def check(text: str) -> None:
        expected = theirs.encode(text)
        ids = ours.encode(text)
        assert ids == expected
        assert ours.decode(ids, skip_special=True) == theirs.decode(expected)
        assert not control & set(ids)

    check()
    for text in (*CORPUS, " ".join(CORPUS * 50)):
        assert ours.encode(text) == theirs.encode(text)


@pytest.mark.parametrize("name", TRAINED)
def test_any_ids_decode_and_stream_alike(name: str) -> None:
    ours, theirs = pair(name)

    @settings(max_examples=120, deadline=None)
    @given(st.lists(st.integers(0, theirs.vocab_size() - 1), max_size=10))
    def check(ids: list[int]) -> None:
        text = ours.decode(ids, skip_special=True)
        stream = ours.stream()
        for _ in range(2):
            pieces = [stream.push(token_id) for token_id in ids] + [stream.flush()]
            assert "".join(pieces) == text
        expected = theirs.decode(ids)
        # How many marks stand for broken UTF-8 is a matter of taste.
        if "\ufffd" not in expected:
            assert text == expected

    check()


@pytest.mark.parametrize("name", ["bpe bytes", "bpe unknown", "unigram bytes"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_unused_pieces_and_ties(name: str, data: st.DataObject) -> None:
    """Any scores, equal ones among them, and pieces that are merged and split again."""
    model = SentencePieceModel.read(trained(name))
    drawn = random.Random(data.draw(st.integers(0, 1000)))
    kinds = [piece.kind for piece in model.pieces]
    may = [n for n, kind in enumerate(kinds) if kind == 1]
    unused = set(drawn.sample(may, data.draw(st.sampled_from([0, 3, len(may) // 3]))))
    scores = [-float(drawn.randrange(1, 9)) for _ in kinds]
    file = vocabulary_file(
        "t5" if model.is_unigram else "llama",
        [piece.text for piece in model.pieces],
        scores,
        [5 if n in unused else int(kind) for n, kind in enumerate(kinds)],
    )
    ours = Tokenizer.from_sentencepiece(file)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=file)
    for text in (*CORPUS, data.draw(TEXTS)):
        assert ours.encode(text) == theirs.encode(text)


def test_sums_of_a_long_text_are_rounded_and_taken_back() -> None:
    """Ties in float32, which change with what came before, and beyond 100,000 begin anew."""
    pieces = ["<unk>", "▁", "a", "b", "aa", "ab", "ba", "aab", "baa", "bab", "▁a", "▁b"]
    drawn = random.Random(3)
    scores = [0.0] + [-drawn.choice((3.1, 5.7, 6.2, 8.8)) * 1.1 for _ in pieces[1:]]
    file = vocabulary_file("t5", pieces, scores, [2] + [1] * (len(pieces) - 1))
    ours = Tokenizer.from_sentencepiece(file)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=file)
    text = "".join(drawn.choices("ab ?", weights=(9, 9, 3, 1), k=60_000))
    assert ours.encode(text) == theirs.encode(text)
    text = "".join(drawn.choices("ab", k=30_000))
    assert ours.encode(text) == theirs.encode(text)


@pytest.mark.parametrize("score", [-0.85, -0.95, -1.15])
def test_the_score_of_a_user_defined_piece(score: float) -> None:
    file = vocabulary_file("t5", ["<unk>", "a", "b", "c", "abc", "ab"],
                           [0.0, -1.0, -1.0, -1.0, score, 0.0], [2, 1, 1, 1, 1, 4])  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_proto=file)
    assert Tokenizer.from_sentencepiece(file).encode("abc") == theirs.encode("abc")


def vocabulary_file(
    kind: str, tokens: list[str], scores: list[float], kinds: list[int], **more: Any
) -> bytes:
    """A `tokenizer.model` by the way of GGUF's metadata."""
    metadata = {"model": kind, "tokens": tokens, "scores": scores, "token_type": kinds, **more}
    files = tokenizer_files({f"tokenizer.ggml.{key}": value for key, value in metadata.items()})
    return files["tokenizer.model"]


@pytest.mark.parametrize("name", TRAINED)
def test_metadata_of_gguf_say_all(name: str) -> None:
    """The file made from GGUF's metadata gives the ids of the file they were taken from."""
    model, spec = SentencePieceModel.read(trained(name)), TRAINED[name]
    if model.normalizer.whitespace_as_suffix:
        return
    file = vocabulary_file(
        "t5" if model.is_unigram else "llama",
        [piece.text for piece in model.pieces],
        [piece.score for piece in model.pieces],
        [int(piece.kind) for piece in model.pieces],
        precompiled_charsmap=[byte - 256 * (byte > 127) for byte in model.normalizer.charsmap],
        add_space_prefix=spec.get("add_dummy_prefix", True),
        remove_extra_whitespaces=spec.get("remove_extra_whitespaces", True),
        bos_token_id=1,
        eos_token_id=2,
    )
    ours, theirs = Tokenizer.from_sentencepiece(file), pair(name)[1]
    assert (ours.bos_id, ours.eos_ids) == (1, (2,))
    for text in (*CORPUS, "  <ctl><s> ﬁ\u3000\u200b  q\n"):
        assert ours.encode(text) == theirs.encode(text)


# tokenizer.json


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
    {"id": number, "content": content, "special": True, "single_word": False, "lstrip": False,
     "rstrip": False, "normalized": False}
    for number, content in enumerate(["<unk>", "<s>", "</s>"])
]  # fmt: skip


def added(first: int, **flags: bool) -> list[dict[str, Any]]:
    user = {"id": first, "content": "<usr>", "special": False}
    return ADDED + [ADDED[0] | t | flags for t in (user, {"id": first + 1, "content": "<ctl>"})]


def bpe_json(**changes: Any) -> dict[str, Any]:
    """The `tokenizer.json` of a trained BPE, its merges made from scores as transformers does."""
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
        "model": {"type": "BPE", "vocab": vocab, "merges": [merge[2] for merge in merges],
                  "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True},
    }  # fmt: skip
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
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": model.byte_ids is not None,
                  "vocab": [[piece.text, piece.score] for piece in model.pieces]},
    }  # fmt: skip
    return spec | changes


def unigram_of_tokenizers() -> Any:
    """Trained by that library, whose scores have all the digits of a float64."""
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


JSON_FORMS: dict[str, Any] = {
    "llama, legacy": lambda: bpe_json(),
    "llama, tokens after normalisation": lambda: bpe_json(added_tokens=added(500, normalized=True)),
    "mistral": lambda: bpe_json(normalizer=None, pre_tokenizer=metaspace("first", False)),
    "split, always": lambda: bpe_json(normalizer=None, pre_tokenizer=metaspace("always", True)),
    "gemma": lambda: bpe_json(
        normalizer=replace({"String": " "}, "▁"),
        pre_tokenizer={"type": "Split", "pattern": {"String": " "},
                       "behavior": "MergedWithPrevious", "invert": False},
        decoder=sequence("decoders", *BYTES),
    ),
    "t5": lambda: unigram_json("unigram nmt_nfkc"),
    "t5, words first": lambda: unigram_json(
        "unigram nmt_nfkc",
        pre_tokenizer=sequence("pretokenizers", {"type": "WhitespaceSplit"},
                               metaspace("always", True)),
    ),
    "t5, stripped": lambda: unigram_json(
        "unigram nmt_nfkc",
        normalizer=sequence("normalizers", {"type": "NFKC"},
                            {"type": "Strip", "strip_left": False, "strip_right": True},
                            replace({"Regex": " {2,}"}, "▁")),
        pre_tokenizer=metaspace("never", True),
        decoder=metaspace("never", True),
    ),
    "unigram bytes": lambda: unigram_json("unigram bytes"),
    "unigram of tokenizers": unigram_of_tokenizers,
}  # fmt: skip


@pytest.mark.parametrize("name", JSON_FORMS)
def test_tokenizer_json(name: str) -> None:
    spec = JSON_FORMS[name]()
    theirs = tokenizers.Tokenizer.from_str(json.dumps(spec))
    spec["added_tokens"] = [
        token | {"id": theirs.token_to_id(token["content"])} for token in spec["added_tokens"]
    ]
    ours = Tokenizer.from_json(spec)
    special = set(ours.special_tokens.values())

    @settings(max_examples=200, deadline=None)
    @given(TEXTS)
    @example(" the <usr> the <usr>")
    def check(text: str) -> None:
        expected = theirs.encode(text, add_special_tokens=False).ids
        # As a template writes it: control tokens count.
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
def test_scores_are_read_as_the_library_reads_them(scores: list[float]) -> None:
    """Its parser is off by a bit, which decides between "a aa" and "aa a"."""
    names = ["<unk>", "a", "aa", "aaa", "b"]
    model = {"type": "Unigram", "unk_id": 0, "vocab": list(zip(names, [0.0, *scores], strict=True))}
    spec = json.loads(json.dumps({"version": "1.0", "model": model}))
    theirs = tokenizers.Tokenizer.from_str(json.dumps(spec | {"added_tokens": []}))
    read = json.loads(theirs.to_str())["model"]["vocab"]
    assert [score_as_tokenizers_reads_it(score) for score in scores] == [s for _, s in read[1:]]
    spec["decoder"] = metaspace("never", False)
    ours = Tokenizer.from_json(spec)
    for length in range(20):
        assert ours.encode("a" * length) == theirs.encode("a" * length).ids


def test_a_template_is_encoded_alike_from_both_files() -> None:
    """The dummy prefix comes after every control token, as in Llama 2's first tokenizer.json."""
    from_json = Tokenizer.from_json(bpe_json())
    from_model, theirs = pair("bpe bytes")
    parts = ["<s>", "</s>", "the", " the", " ", "  ", "\n", "你好"]

    def reference(part: str) -> list[int]:
        return [theirs.piece_to_id(part)] if part in parts[:2] else theirs.encode(part)

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.sampled_from(parts)).map("".join))
    def check(text: str) -> None:
        ids = from_model.encode_rendered(text, [])
        assert ids == from_json.encode_rendered(text, [])
        assert ids == [n for part in re.split("(<s>|</s>)", text) for n in reference(part)]

    check()


def test_control_tokens_are_text() -> None:
    control = {0, 1, 2}
    for ours in (pair("bpe bytes")[0], Tokenizer.from_json(bpe_json())):
        ids = ours.encode("<s>a</s> <unk>")
        assert not control & set(ids)
        assert ours.decode(ids) == "<s>a</s> <unk>"
        assert ours.encode_rendered("<s>a</s>", [])[0] == 1
        assert ours.encode_rendered("<s>a</s>", [(0, 3)])[-1] == 2
        assert ours.encode_rendered("<s>a</s>", [(0, 3)])[0] != 1
    # A control token that is looked for in normalised text, between contents.
    forged = bpe_json(added_tokens=[*ADDED[:2], ADDED[2] | {"normalized": True}])
    ids = Tokenizer.from_json(forged).encode_rendered("<s> </s>hi </s>", [(3, 10)])
    assert ids.count(2) == 1
    assert ids[-1] == 2


def test_tokens_beside_the_file() -> None:
    data = trained("bpe user-defined")
    usr = pair("bpe user-defined")[1].piece_to_id("<usr>")
    config = {"added_tokens_decoder": {str(usr): {"content": "<usr>", "special": True}},
              "bos_token": "<s>", "eos_token": {"content": "<usr>"}}  # fmt: skip
    ours = Tokenizer.from_sentencepiece(data, config, None, {"<more>": 9000})
    assert ours.vocab_size == 9001
    assert ours.eos_ids == (usr,)
    assert usr not in ours.encode("<usr>")
    assert ours.encode_rendered("<usr><more>", []) == [usr, 9000]
    with pytest.raises(BadModelFile, match="another token"):
        Tokenizer.from_sentencepiece(data, None, None, {"<more>": usr})


HOSTILE = {
    "a": "a" * 250_000,
    "spaces": " " * 250_000,
    "marks": "e" + "\u0301" * 125_000,
    "unknown": "\U0001f600" * 60_000,
    "bytes": random.Random(0).randbytes(180_000).decode("utf-8", "replace"),
    "letters": "".join(random.Random(1).choices("abtheor ", k=250_000)),
    "control tokens": "<s>" * 80_000,
    "user-defined": "<us" * 80_000,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["bpe bytes", "bpe user-defined", "unigram user-defined"])
def test_a_hostile_quarter_of_a_megabyte(kind: str, name: str) -> None:
    ours = pair(kind)[0]
    start = time.process_time()
    ids = ours.encode(HOSTILE[name])
    # A fifth of a second; what is not linear takes minutes.
    assert time.process_time() - start < 3
    assert not set(ours.special_tokens.values()) & set(ids)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_broken_files_are_refused(data: st.DataObject) -> None:
    good = trained("unigram nmt_nfkc")
    at = data.draw(st.integers(0, len(good) - 1))
    what = data.draw(st.sampled_from(["cut", "flip"]))
    flipped = good[at] ^ data.draw(st.integers(1, 255))
    broken = good[:at] if what == "cut" else good[:at] + bytes((flipped,)) + good[at + 1 :]
    with contextlib.suppress(BadModelFile):
        Tokenizer.from_sentencepiece(broken).encode("the e\u0301 words")


def test_a_message_in_many_parts_is_read_in_linear_time() -> None:
    start = time.process_time()
    parts = b"\x12\x02\x18\x02" * 300_000  # trainer_spec { model_type: BPE }
    assert not SentencePieceModel.read(trained("unigram bytes") + parts).is_unigram
    assert time.process_time() - start < 5


LIES: list[tuple[dict[str, Any], str]] = [
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


@pytest.mark.parametrize(("changes", "named"), LIES)
def test_lies_are_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(BadModelFile) as caught:
        Tokenizer.from_json(bpe_json(added_tokens=[]) | changes)
    assert named in str(caught.value)
