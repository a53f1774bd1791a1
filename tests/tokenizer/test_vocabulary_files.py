"""Vocabulary file formats: ids equal those of the reference library of each format."""

import base64
import json
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import tokenizers
import transformers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swiftchat.errors import BadModelFile, ModelNotFound
from swiftchat.tokenizer import Tokenizer
from swiftchat.tokenizer.core.byte_level import to_bytes
from swiftchat.tokenizer.huggingface import patterns
from swiftchat.weights.gguf import pretokenizers
from swiftchat.weights.gguf import tokenizer as gguf_tokenizer

CORPUS = [
    "the quick brown fox isn't over the lazy dog's 12345 tails, THEY'RE 67 890 CamelCase",
    "def f(x):\n    return [x ** 2 for x in range(1000)]\n\n\n\t\tpass  # aaaa // bbb\r\n",
    "Größe café naïve Việt нет да 你好世界 日本語 한국어 \U0001f600\U0001f44d\U0001f3fd e\u0301",
]
END = "<|endoftext|>"
TEXTS = st.one_of(
    st.lists(
        st.sampled_from(
            [
                "the",
                "They'LL",
                "'S",
                "\u017f",
                " ",
                "  ",
                "\n",
                "\r\n",
                "\t",
                "\x85",
                "\xa0",
                "\u200b",
                "\x00",
                "\x1c",
                "1",
                "234",
                "٣",
                "½",
                "一",
                "你好",
                "e\u0301",
                "A\u030a",
                "\u01c5",
                "ʰ",
                "\U0001f600",
                "aAbB",
                "XML",
                "!",
                "//",
                "/",
                "_",
                "don't",
                END,
            ]
        ),
        max_size=20,
    ).map("".join),
    st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=30),
    st.text("aB '1\n/", max_size=40),
    st.text("aB 1\n", max_size=9),
)


def _trained() -> tuple[dict[str, int], list[str]]:
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(CORPUS * 3, trainer)
    model = json.loads(library.to_str())["model"]
    return model["vocab"], [" ".join(pair) for pair in model["merges"]]


VOCAB, MERGES = _trained()
NUM_RANKS = len(VOCAB)
RANKS = {to_bytes(token): rank for token, rank in VOCAB.items()}


def merges_files(**config: Any) -> dict[str, bytes]:
    return {
        "vocab.json": json.dumps({**VOCAB, END: NUM_RANKS}).encode(),
        "merges.txt": "\n".join(["#version: 0.2", *MERGES, ""]).encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }


def rank_file(ranks: dict[bytes, int]) -> bytes:
    return b"".join(base64.b64encode(t) + b" %d\n" % rank for t, rank in ranks.items())


@pytest.mark.parametrize(
    "name", ["GPT2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer"]
)
@pytest.mark.parametrize("prefix", [False, True])
def test_vocab_and_merges_equal_the_tokenizer_class(name: str, prefix: bool) -> None:
    files = merges_files(tokenizer_class=name + "Fast" * prefix, add_prefix_space=prefix)
    ours = Tokenizer.from_files(files)
    pairs = [tuple(merge.split(" ")) for merge in MERGES]
    made = getattr(transformers, name)({**VOCAB, END: NUM_RANKS}, pairs, add_prefix_space=prefix)
    theirs = made.backend_tokenizer
    theirs.encode_special_tokens = True

    @settings(max_examples=60, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False)

    check()
    assert ours.special_tokens == made.get_added_vocab()
    assert ours.special_tokens[END] == NUM_RANKS
    assert ours.eos_ids == (NUM_RANKS,)


def test_tokens_added_to_vocab_and_merges(tmp_path: Path) -> None:
    files = merges_files(eos_token="<end>")
    added = {"<end>": NUM_RANKS + 1, "  ": NUM_RANKS + 2, "<user>": NUM_RANKS + 7}
    files["added_tokens.json"] = json.dumps(added).encode()
    files["special_tokens_map.json"] = json.dumps(
        {"pad_token": {"content": "<none>"}, "additional_special_tokens": ["the"]}
    ).encode()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    for path in (tmp_path, tmp_path / "vocab.json"):
        ours = Tokenizer.load(path)
        end, user = NUM_RANKS + 1, NUM_RANKS + 3
        control = {END: NUM_RANKS, "<end>": end, "<user>": user, "<none>": user + 1}
        assert ours.special_tokens == control
        assert ours.named_tokens["pad_token"] == "<none>"
        assert ours.encode_rendered("  <user>", []) == [NUM_RANKS + 2, user]
        assert not {*control.values()} & set(ours.encode(f"the{END}<end>"))
        # Ordinary text is no control token even if a file lists it.
        assert ours.encode("the") == [VOCAB["the"]]
        assert ours.eos_ids == (end,)
        assert ours.vocab_size == user + 2


# The patterns as published with `tiktoken`; ours are equivalent.
PUBLISHED = {
    "r50k_base.tiktoken": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$"
    r"|\s+(?!\S)|\s",
    "cl100k_base.tiktoken": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k_base.tiktoken": "|".join(
        [
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ]
    ),
    "tokenizer.model": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_rank_files_equal_tiktoken(name: str) -> None:
    # Tokens that no merge makes appear only as whole words, so they show the split into words.
    whole_words = [
        b" unreachable",
        *(bytes(w) for n in (3, 4) for w in product(b" \n1aB", repeat=n)),
    ]
    ranks = dict(zip(dict.fromkeys([*RANKS, *whole_words]), count(), strict=False))
    ours = Tokenizer.from_files({name: rank_file(ranks)})
    theirs = tiktoken.Encoding(
        "test", pat_str=PUBLISHED[name], mergeable_ranks=ranks, special_tokens={}
    )

    @settings(max_examples=100, deadline=None)
    @given(TEXTS)
    @example("an unreachable one")
    def check(text: str) -> None:
        ids = ours.encode(text)
        assert ids == theirs.encode(text, disallowed_special=())
        assert ours.decode(ids) == text

    check()


def test_control_tokens_of_rank_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(rank_file(RANKS))
    llama = Tokenizer.load(tmp_path)
    assert llama.bos_id == NUM_RANKS
    assert llama.special_tokens["<|eot_id|>"] == NUM_RANKS + 9
    assert llama.special_tokens["<|eot_id|>"] not in llama.encode("<|eot_id|>")
    (tmp_path / "tokenizer.model").rename(tmp_path / "any.tiktoken")
    config = {
        "tokenizer_class": "QWenTokenizer",
        "added_tokens_decoder": {str(NUM_RANKS + 1): {"content": "<x>", "special": True}},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    qwen = Tokenizer.load(tmp_path)
    assert qwen.special_tokens == {
        END: NUM_RANKS,
        "<x>": NUM_RANKS + 1,
        "<|im_end|>": NUM_RANKS + 2,
    }
    assert qwen.eos_ids == (NUM_RANKS,)
    assert qwen.encode("e\u0301") == qwen.encode("é")


def test_gguf_metadata_give_the_same_ids(tmp_path: Path) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(VOCAB),
        "tokenizer.ggml.merges": MERGES,
    }
    ours = Tokenizer.from_files(gguf_tokenizer.tokenizer_files(metadata))
    assert ours.encode(CORPUS[0]) == Tokenizer.from_files(merges_files()).encode(CORPUS[0])
    with pytest.raises(BadModelFile) as caught:
        Tokenizer.load(tmp_path / "model.gguf")
    assert "swiftchat convert model.gguf" in str(caught.value.hint)


def files_of_pre_tokenizer(pre: str) -> dict[str, bytes]:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(VOCAB),
        "tokenizer.ggml.merges": MERGES,
    }
    return gguf_tokenizer.tokenizer_files(metadata)


def different_pre_tokenizers() -> list[str]:
    """Return one of the names with the same files, for each of them."""
    names = sorted(pretokenizers.PRE_TOKENIZERS, reverse=True)
    return sorted({repr(files_of_pre_tokenizer(name)): name for name in names}.values())


@pytest.mark.parametrize("pre", different_pre_tokenizers())
def test_gguf_pre_tokenizers_equal_the_library(pre: str) -> None:
    files = files_of_pre_tokenizer(pre)
    theirs = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    ours = Tokenizer.from_files(files)

    @settings(max_examples=80, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids

    check()
    for text in CORPUS:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def test_weights_and_tokenizer_have_the_same_patterns() -> None:
    in_weights = {source for source in vars(pretokenizers).values() if isinstance(source, str)}
    assert {patterns.LLAMA3, patterns.QWEN2, patterns.O200K} <= in_weights


TRUNCATED = rank_file(RANKS)[:-3]
INVALID: list[tuple[dict[str, bytes], str]] = [
    (merges_files(tokenizer_class="ClipTokenizer"), "ClipTokenizer"),
    (merges_files(add_prefix_space="yes"), "add_prefix_space"),
    (merges_files(added_tokens_decoder=[1]), "added_tokens_decoder"),
    (merges_files(added_tokens_decoder={"x": {}}), "added_tokens_decoder"),
    (merges_files(added_tokens_decoder={"9" * 5000: {}}), "added_tokens_decoder"),
    (merges_files() | {"vocab.json": b"[]"}, "vocab.json"),
    (merges_files() | {"vocab.json": b'{"a'}, "vocab.json"),
    (merges_files() | {"vocab.json": b'{"a": 1e99}'}, "vocab.json"),
    (merges_files() | {"merges.txt": b"a b c\n"}, "merges.txt"),
    (merges_files() | {"merges.txt": b"a nowhere\n"}, "nowhere"),
    (merges_files() | {"merges.txt": b"\xff"}, "merges.txt"),
    (merges_files() | {"added_tokens.json": b'{"x": -1}'}, "added_tokens.json"),
    (merges_files(extra_special_tokens=5), "extra_special_tokens"),
    (merges_files(additional_special_tokens=[5]), "extra_special_tokens[0]"),
    (merges_files(extra_special_tokens={"image_token": 5}), "image_token"),
    (merges_files(eos_token=[5]), "eos_token"),
    (merges_files(eos_token={"content": "</s>", "lstrip": 5}), "eos_token.lstrip"),
    (merges_files() | {"special_tokens_map.json": b'{"pad_token": 5}'}, "pad_token"),
    ({"unknown.tiktoken": rank_file(RANKS)}, "unknown.tiktoken"),
    ({"qwen.tiktoken": b"\x0a\x00"}, "qwen.tiktoken"),
    ({"qwen.tiktoken": TRUNCATED + b" x 1 y"}, "qwen.tiktoken"),
    ({"qwen.tiktoken": rank_file(RANKS) + b"!!!! 7\n"}, f"line {NUM_RANKS + 1}"),
    ({"qwen.tiktoken": rank_file(RANKS) + b"YWFhYWFhYQ== -7\n"}, "negative"),
    ({"qwen.tiktoken": rank_file(RANKS) + b"YWFhYWFhYQ== 99999999999\n"}, "large"),
    ({"qwen.tiktoken": rank_file(RANKS) + b"YWFhYWFhYQ== 7\n"}, "the same rank"),
    ({"qwen.tiktoken": rank_file(RANKS) + b"YWFhYWFhYQ== %d\n" % (NUM_RANKS + 2)}, "control"),
    ({"qwen.tiktoken": b"IQ== 0\n"}, "byte"),
]


@pytest.mark.parametrize(("files", "named"), INVALID)
def test_invalid_file_is_named(files: dict[str, bytes], named: str) -> None:
    with pytest.raises(BadModelFile) as caught:
        Tokenizer.from_files(files)
    assert named in str(caught.value)


def test_missing_files_raise_model_not_found(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "qwen.tiktoken"):
        with pytest.raises(ModelNotFound):
            Tokenizer.load(path)
    with pytest.raises(ModelNotFound):
        Tokenizer.from_files({"merges.txt": b""})
