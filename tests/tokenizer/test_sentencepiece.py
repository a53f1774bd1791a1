"""SentencePiece vocabularies: ids and text equal those of `sentencepiece`."""

import contextlib
import random
import time
from typing import Any

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer import Tokenizer
from swiftchat.tokenizer.sentencepiece.model import SentencePieceModel
from swiftchat.weights.gguf.tokenizer import tokenizer_files
from tests.support.sentencepiece_models import CORPUS, TEXTS, TRAINED, pair, trained


@pytest.mark.parametrize("name", TRAINED)
def test_trained_vocabularies_equal_the_library(name: str) -> None:
    ours, theirs = pair(name)
    control = set(ours.special_tokens.values())

    @settings(max_examples=100, deadline=None)
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
def test_decoding_and_streaming_any_ids_equals_the_library(name: str) -> None:
    ours, theirs = pair(name)

    @settings(max_examples=80, deadline=None)
    @given(st.lists(st.integers(0, theirs.vocab_size() - 1), max_size=10))
    def check(ids: list[int]) -> None:
        text = ours.decode(ids, skip_special=True)
        stream = ours.stream()
        for _ in range(2):
            pieces = [stream.push(token_id) for token_id in ids] + [stream.flush()]
            assert "".join(pieces) == text
        expected = theirs.decode(ids)
        # The number of replacement characters for invalid UTF-8 may differ.
        if "\ufffd" not in expected:
            assert text == expected

    check()


@pytest.mark.parametrize("name", ["bpe bytes", "bpe unknown", "unigram bytes"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_unused_pieces_and_equal_scores(name: str, data: st.DataObject) -> None:
    """Random scores with ties, and unused pieces, which are merged and split again."""
    model = SentencePieceModel.read(trained(name))
    generator = random.Random(data.draw(st.integers(0, 1000)))
    kinds = [piece.kind for piece in model.pieces]
    normal = [n for n, kind in enumerate(kinds) if kind == 1]
    unused = set(generator.sample(normal, data.draw(st.sampled_from([0, 3, len(normal) // 3]))))
    scores = [-float(generator.randrange(1, 9)) for _ in kinds]
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


def test_score_sums_of_a_long_text_equal_the_library() -> None:
    """Float32 rounding depends on the text before, and sums beyond 100,000 are reset."""
    pieces = ["<unk>", "▁", "a", "b", "aa", "ab", "ba", "aab", "baa", "bab", "▁a", "▁b"]
    generator = random.Random(3)
    scores = [0.0] + [-generator.choice((3.1, 5.7, 6.2, 8.8)) * 1.1 for _ in pieces[1:]]
    file = vocabulary_file("t5", pieces, scores, [2] + [1] * (len(pieces) - 1))
    ours = Tokenizer.from_sentencepiece(file)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=file)
    text = "".join(generator.choices("ab ?", weights=(9, 9, 3, 1), k=60_000))
    assert ours.encode(text) == theirs.encode(text)
    text = "".join(generator.choices("ab", k=30_000))
    assert ours.encode(text) == theirs.encode(text)


@pytest.mark.parametrize("score", [-0.85, -0.95, -1.15])
def test_score_of_a_user_defined_piece(score: float) -> None:
    file = vocabulary_file(
        "t5",
        ["<unk>", "a", "b", "c", "abc", "ab"],
        [0.0, -1.0, -1.0, -1.0, score, 0.0],
        [2, 1, 1, 1, 1, 4],
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=file)
    assert Tokenizer.from_sentencepiece(file).encode("abc") == theirs.encode("abc")


def vocabulary_file(
    kind: str, tokens: list[str], scores: list[float], kinds: list[int], **more: Any
) -> bytes:
    """Return a `tokenizer.model` made from GGUF metadata."""
    metadata = {"model": kind, "tokens": tokens, "scores": scores, "token_type": kinds, **more}
    files = tokenizer_files({f"tokenizer.ggml.{key}": value for key, value in metadata.items()})
    return files["tokenizer.model"]


@pytest.mark.parametrize("name", TRAINED)
def test_model_made_from_gguf_metadata_gives_the_same_ids(name: str) -> None:
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


@pytest.mark.parametrize("unknown", [{}, {"unknown_token_id": 1}])
def test_gguf_padding_of_type_unknown(unknown: dict[str, int]) -> None:
    tokens = ["a", "<unk>", "▁", "[PAD1]", "[PAD2]"]
    file = vocabulary_file("llama", tokens, [0.0] * 5, [1, 2, 1, 2, 2], **unknown)
    assert Tokenizer.from_sentencepiece(file).encode("a[PAD1]") == [2, 0, 1]


def test_tokens_declared_beside_the_model() -> None:
    data = trained("bpe user-defined")
    theirs = pair("bpe user-defined")[1]
    usr = theirs.piece_to_id("<usr>")
    config = {
        "added_tokens_decoder": {str(usr): {"content": "<usr>", "special": True}},
        "bos_token": "<s>",
        "eos_token": {"content": "<usr>"},
    }
    ours = Tokenizer.from_sentencepiece(data, config, None, {"<more>": 9000})
    # `added_tokens_decoder` makes `added_tokens.json` ineffective.
    assert ours.vocab_size == theirs.get_piece_size()
    assert ours.eos_ids == (usr,)
    assert usr not in ours.encode("<usr>")
    assert ours.encode_rendered("<usr>", []) == [usr]
    # A token that is no piece gets the next id, whatever the file says.
    for token_id in (9000, usr):
        ours = Tokenizer.from_sentencepiece(data, None, None, {"<more>": token_id})
        assert ours.encode_rendered("<more>", []) == [theirs.get_piece_size()]
        assert ours.vocab_size == theirs.get_piece_size() + 1


# Made by the tests: every process that collects them would wait for the random ones.
HOSTILE = {
    "a": lambda: "a" * 100_000,
    "spaces": lambda: " " * 100_000,
    "marks": lambda: "e" + "\u0301" * 50_000,
    "unknown": lambda: "\U0001f600" * 24_000,
    "bytes": lambda: random.Random(0).randbytes(70_000).decode("utf-8", "replace"),
    "letters": lambda: "".join(random.Random(1).choices("abtheor ", k=100_000)),
    "control tokens": lambda: "<s>" * 32_000,
    "user-defined": lambda: "<us" * 32_000,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["bpe bytes", "bpe user-defined", "unigram user-defined"])
def test_time_for_a_hostile_tenth_of_a_megabyte(kind: str, name: str) -> None:
    ours = pair(kind)[0]
    text = HOSTILE[name]()
    start = time.process_time()
    ids = ours.encode(text)
    # About 0.1 s. An algorithm that is not linear takes minutes.
    assert time.process_time() - start < 15
    assert not set(ours.special_tokens.values()) & set(ids)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_files_raise_only_bad_model_file(data: st.DataObject) -> None:
    good = trained("unigram nmt_nfkc")
    at = data.draw(st.integers(0, len(good) - 1))
    damage = data.draw(st.sampled_from(["truncate", "flip"]))
    flipped = good[at] ^ data.draw(st.integers(1, 255))
    damaged = good[:at] if damage == "truncate" else good[:at] + bytes((flipped,)) + good[at + 1 :]
    with contextlib.suppress(BadModelFile):
        Tokenizer.from_sentencepiece(damaged).encode("the e\u0301 words")


def test_repeated_protobuf_fields_are_read_in_linear_time() -> None:
    start = time.process_time()
    parts = b"\x12\x02\x18\x02" * 300_000  # trainer_spec { model_type: BPE }
    assert not SentencePieceModel.read(trained("unigram bytes") + parts).is_unigram
    assert time.process_time() - start < 50
