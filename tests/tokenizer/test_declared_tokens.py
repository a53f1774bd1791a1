"""Tokens declared in the files beside a vocabulary have the ids that transformers gives them."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from swiftchat.tokenizer import Tokenizer
from tests.support.declared_tokens import (
    CONTROL,
    VOCAB,
    added_entry,
    differences,
    random_files,
    tokenizer_json,
    write,
)

START, END, NEW = "<|im_start|>", "<|im_end|>", "<new>"
FLAGS = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
ONE = tokenizer_json([added_entry(CONTROL[0], VOCAB[CONTROL[0]])])
DECODER = {str(VOCAB[text]): {"content": text, **FLAGS, "special": True} for text in CONTROL}
# Files beside a tokenizer.json that knows only the first control token.
WAYS: dict[str, dict[str, Any]] = {
    "named": {"config": {"eos_token": END, "bos_token": START}},
    "named, as an object": {
        "config": {"eos_token": {"__type": "AddedToken", "content": END, **FLAGS, "rstrip": True}}
    },
    "a name of the model's own": {"config": {"image_token": START, "eos_token": END}},
    "additional": {"config": {"additional_special_tokens": [START, END, NEW]}},
    "extra list": {"config": {"extra_special_tokens": [START, END]}},
    "extra names": {"config": {"extra_special_tokens": {"image_token": START, "x_token": NEW}}},
    "not in the vocabulary": {"config": {"pad_token": NEW, "mask_token": "<mask>"}},
    "decoder": {"config": {"added_tokens_decoder": DECODER}},
    "decoder with a gap": {
        "config": {"added_tokens_decoder": {**DECODER, "300": {"content": NEW, "special": True}}}
    },
    "decoder that denies a control token": {
        "config": {
            "eos_token": END,
            "added_tokens_decoder": {str(VOCAB[END]): {"content": END, "special": False}},
        }
    },
    "map": {"special_tokens_map.json": {"eos_token": END, "additional_special_tokens": [START]}},
    "map of objects": {
        "special_tokens_map.json": {"eos_token": {"content": END, **FLAGS}, "pad_token": NEW}
    },
    "map that contradicts": {
        "config": {"eos_token": START},
        "special_tokens_map.json": {"eos_token": END},
    },
    "added_tokens.json": {"added_tokens.json": {START: VOCAB[START], END: VOCAB[END], NEW: 400}},
}


def files_of(way: dict[str, Any]) -> dict[str, Any]:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **way.get("config", {})}
    others = {name: value for name, value in way.items() if name != "config"}
    return {"tokenizer.json": ONE, "tokenizer_config.json": config, **others}


@pytest.mark.parametrize("name", WAYS)
def test_ids_equal_transformers(name: str, tmp_path: Path) -> None:
    files = files_of(WAYS[name])
    assert differences(tmp_path, files) is None
    ours = Tokenizer.load(tmp_path)
    declared = json.dumps(WAYS[name])
    for text in (START, END, NEW):
        if f'"{text}"' not in declared or name == "map that contradicts":
            continue
        token_id = ours.special_tokens[text]
        assert ours.encode_rendered(text, []) == [token_id]
        assert token_id not in ours.encode(f"a{text}b")  # untrusted text


@pytest.mark.parametrize("kind", ["json", "merges"])
def test_random_declarations_equal_transformers(kind: str, tmp_path: Path) -> None:
    for seed in range(120):
        found = differences(tmp_path, random_files(kind, seed))
        assert found is None, f"seed {seed}: {found}"


@pytest.mark.parametrize("field", ["pad_token", "bos_token", "unk_token", "image_token"])
@pytest.mark.parametrize("text", ["ab", "H"])
def test_ordinary_text_stays_text(field: str, text: str) -> None:
    """A pad token that is a common word must not make the word unusable."""
    ours = Tokenizer.from_json(ONE, {field: text, "extra_special_tokens": [text]})
    assert ours.encode(f"x{text}x") == [VOCAB["x"], VOCAB[text], VOCAB["x"]]
    assert ours.named_tokens[field] == text
    assert text not in ours.special_tokens


def test_renumbered_tokens_equal_the_library(tmp_path: Path) -> None:
    """`tokenizers` ignores the ids in the file."""
    base = {text: number for text, number in VOCAB.items() if number < 256} | {"ab": 256}
    added = [added_entry(text, 300 - number) for number, text in enumerate(CONTROL)]
    files = {
        "tokenizer.json": tokenizer_json(added, base),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
    }
    assert differences(tmp_path, files) is None
    assert Tokenizer.load(tmp_path).special_tokens[CONTROL[0]] == 257


def test_a_vocabulary_with_gaps_keeps_its_ids() -> None:
    """`tokenizers` gives a new token the number of tokens, which may be the id of another one."""
    vocab = {text: number for text, number in VOCAB.items() if text != "x"} | {"z": len(VOCAB) - 1}
    del vocab["ab"]
    spec = tokenizer_json([], vocab)
    spec["model"]["merges"] = []
    ours = Tokenizer.from_json(spec, {"pad_token": NEW, "eos_token": "<n2>"})
    assert ours.encode("z") == [len(VOCAB) - 1]
    assert ours.special_tokens == {"<n2>": len(VOCAB), NEW: len(VOCAB) + 1}


def test_templates_may_use_all_named_tokens() -> None:
    config = {
        "extra_special_tokens": {"image_token": "<s>"},
        "boi_token": "<pad>",
        "chat_template": "{{ image_token }}{{ boi_token }}{{ messages[0].content }}",
    }
    ids = Tokenizer.from_json(ONE, config).prompt([{"role": "user", "content": "<s>H"}]).ids
    assert ids[:2] == [VOCAB["<s>"], VOCAB["<pad>"]]
    assert VOCAB["<s>"] not in ids[2:]


def test_text_without_a_decoder() -> None:
    ours = Tokenizer.from_json(ONE | {"decoder": None})
    assert ours.decode(ours.encode("ab é")) == "ab é"


def test_sentencepiece_ids_equal_transformers(tmp_path: Path) -> None:
    from tests.support.sentencepiece_models import trained

    config = {"tokenizer_class": "LlamaTokenizer", "pad_token": "<none>"}
    write(tmp_path, {"tokenizer_config.json": config, "added_tokens.json": {NEW: 9000}})
    (tmp_path / "tokenizer.model").write_bytes(trained("bpe bytes"))
    theirs = transformers.LlamaTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    for text in (NEW, "<none>", "<s>", "</s>"):
        assert ours.encode_rendered(text, []) == theirs.encode(text, add_special_tokens=False)
