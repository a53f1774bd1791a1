"""The tokenizer.json made from a GGUF vocabulary, as `tokenizers` and transformers read it."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf.tokenizer import tokenizer_json
from tests.support.gguf import tiny as tiny_gguf

TEXTS = [
    "Hello  world 123\n\tfoo",
    "<|im_end|>user text é漢字🙂",
    "   a b\r\n\r\n  ",
    "I'm we'LL 1234567",
    "x" * 500,
    "",
    " ",
    "a\u0301 \x1c\x85",
    "def f(x):\n    return x**2  # ½²",
]


def metadata(**changes: Any) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tiny_gguf.TOKENS,
        "tokenizer.ggml.token_type": tiny_gguf.KINDS,
        "tokenizer.ggml.merges": tiny_gguf.MERGES,
        "tokenizer.ggml.bos_token_id": tiny_gguf.TOKENS.index("<|begin|>"),
        **{f"tokenizer.ggml.{key}": value for key, value in changes.items()},
    }


def tokenizer(**changes: Any) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(metadata(**changes))))


def test_merges_and_added_tokens_work() -> None:
    made = tokenizer()
    assert made.encode("abc a12").tokens == ["abc", "Ġa", "1", "2"]
    assert made.encode("a<|end|>b<user>").tokens == ["a", "<|end|>", "b", "<user>"]
    added = made.get_added_tokens_decoder()
    special = {token.content: token.special for token in added.values()}
    assert special == {"<|begin|>": True, "<|end|>": True, "<user>": False}
    assert made.token_to_id("<user>") == tiny_gguf.TOKENS.index("<user>")


def test_unused_tokens_are_left_out() -> None:
    assert "[PAD102]" not in tokenizer().get_vocab()
    assert tokenizer().encode("[PAD102]").tokens == list("[PAD102]")


def test_gemma4_vocabulary_is_bpe_over_characters(tmp_path: Path) -> None:
    """Spaces become ▁ without one in front; what has no piece becomes bytes."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["▁", *"abc\n", "ab", "▁ab", "\n\n", "<image|>"]
    keys = {
        "model": "gemma4",
        "pre": None,
        "tokens": tokens,
        "token_type": [3, 3, 3, 2, *[6] * 256, *[1] * 8, 4],
        "merges": ["a b", "▁ ab", "\n \n"],
        "bos_token_id": 2,
        "unknown_token_id": 3,
    }
    text = "ab  abc\n\né<image|>b"
    pieces = ["ab", "▁", "▁ab", "c", "\n\n", "<0xC3>", "<0xA9>", "<image|>", "b"]
    assert tokenizer(**keys).encode(text).tokens == ["<bos>", *pieces]
    ids = [tokens.index(piece) for piece in pieces]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(metadata(**keys))))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    ours = Tokenizer.load(tmp_path)
    assert ours.encode(text) == ids
    assert ours.decode(ids) == text
    assert not tokenizer(**keys, add_bos_token=False).encode("").ids


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["a", "1", "2", "3", "4", "!!"]),
        ("gpt-2", ["a", "1234", "!!"]),
        ("default", ["a", "1234", "!!"]),
        ("llama-bpe", ["a", "123", "4", "!!"]),
        ("falcon3", ["a", "123", "4", "!!"]),
        ("chatglm-bpe", ["a", "123", "4", "!!"]),
        ("glm4", ["a", "123", "4", "!!"]),
        ("qwen2", ["a", "1", "2", "3", "4", "!!"]),
        ("stablelm2", ["a", "1", "2", "3", "4", "!!"]),
        ("starcoder", ["a", "1", "2", "3", "4", "!!"]),
        ("falcon", ["a", "123", "4", "!!"]),
        ("bloom", ["a1234", "!!"]),
        ("llama4", ["a", "123", "4", "!!"]),
    ],
)
def test_pre_tokenizers_split_like_the_original_models(pre: str, pieces: list[str]) -> None:
    split = tokenizer(pre=pre).pre_tokenizer.pre_tokenize_str("a1234!!")
    assert [piece for piece, _ in split] == pieces


# Expected by reading the published patterns.
@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("kimi-k2", "I'll GOgo漢字と12345!\n x", "I'll| GOgo|漢字|と|123|45|!\n| x"),
        ("kimi-k2", "ab漢c", "ab|漢|c"),
        ("afmoe", "a 1234567 漢字!", "a| |1|234|567| |漢字|!"),
        ("tiny_aya", "It's 12345", "It's| |12|345"),
        ("bailingmoe", "I'LL say 12\n\nx", "I|'LL| say| |1|2|\n\n|x"),
        ("jais-2", "a" + 7 * " " + "b12345", "a|    |  | b|123|45"),
        ("viking", "ab 12", "ab| |1|2"),
        ("minicpm5", "I'LL say 12345!\n x", "I|'LL| say| |123|45|!\n| x"),
        ("laguna", "a!\n\nb 12", "a|!|\n\n|b| |1|2"),
        ("ufakzeka", "Ali'den 12", "Ali|'den| |1|2"),
        ("spark2_5", "a 1234 !!\n\nb", "a| |1|2|3|4| !!|\n|\n|b"),
    ],
)
def test_pre_tokenizers_of_particular_models(pre: str, text: str, pieces: str) -> None:
    """By the reference library and by our tokenizer, whose expressions are another library's."""
    split = tokenizer(pre=pre).pre_tokenizer.pre_tokenize_str(text)
    found = [text[start:end] for _, (start, end) in split]
    assert found == pieces.split("|")


@pytest.mark.parametrize(
    ("changes", "adds"),
    [
        ({}, False),
        ({"add_bos_token": True}, True),
        ({"pre": "llama-bpe"}, True),
        ({"pre": "llama-bpe", "add_bos_token": False}, False),
    ],
)
def test_bos_follows_the_metadata(changes: dict[str, Any], adds: bool) -> None:
    encoded = tokenizer(**changes).encode("a")
    assert encoded.tokens == (["<|begin|>", "a"] if adds else ["a"])


def test_some_pre_tokenizers_ignore_merges_for_whole_words() -> None:
    # "c" + "ab" is not a merge, so only a whole-word lookup finds "cab".
    tokens = [*tiny_gguf.TOKENS, "cab"]
    changes = {"tokens": tokens, "token_type": [*tiny_gguf.KINDS, 1], "add_bos_token": False}
    for pre in ("llama-bpe", "glm4", "glm5", "minicpm5"):
        assert tokenizer(pre=pre, **changes).encode("cab").tokens == ["cab"]
    assert tokenizer(pre="smollm", **changes).encode("cab").tokens == ["c", "ab"]


def test_real_vocabulary_is_byte_for_byte_reversible(smollm2: Path) -> None:
    made = tokenizers.Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2)
    assert made.get_vocab_size() == 49152
    assert (theirs.bos_token, theirs.eos_token) == ("<|im_start|>", "<|im_end|>")
    for text in TEXTS:
        ids = made.encode(text, add_special_tokens=False).ids
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids
        if not {"\x1c", "\x85"} & set(text):
            assert made.decode(ids, skip_special_tokens=False) == text


def test_real_merges_are_kept_in_order(smollm2_gguf: Path) -> None:
    file = GgufFile.open(smollm2_gguf)
    made = tokenizer_json(file.metadata)
    assert made["model"]["merges"] == file.metadata["tokenizer.ggml.merges"]
    assert [token["id"] for token in made["added_tokens"]] == list(range(17))
