"""The tokens at the ends of a whole text, as `tokenizer(text)` of transformers adds them."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.gguf.config import tokenizer_config_json
from swiftchat.weights.gguf.tokenizer import tokenizer_files
from tests.support.declared_tokens import CONTROL, VOCAB, added_entry, tokenizer_json, write
from tests.support.sentencepiece_models import trained
from tests.support.tekken import tekken

BOS, EOS = VOCAB["<s>"], VOCAB["</s>"]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}


def template(before: list[str], after: list[str]) -> dict[str, Any]:
    def special(name: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": 0}}

    text = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {
        "type": "TemplateProcessing",
        "single": [*map(special, before), text[0], *map(special, after)],
        "pair": text,
        "special_tokens": {
            name: {"id": name, "ids": [VOCAB[name]], "tokens": [name]} for name in before + after
        },
    }


def pair(kind: str) -> dict[str, Any]:
    more = {"trim_offsets": True, "add_prefix_space": True} if kind.startswith("Rob") else {}
    return {"type": kind, "sep": ["</s>", EOS], "cls": ["<s>", BOS], **more}


POST_PROCESSORS: dict[str, Any] = {
    "none": None,
    "byte level": BYTE_LEVEL,
    "BOS": template(["<s>"], []),
    "BOS and EOS": template(["<s>"], ["</s>"]),
    "several": template(["<|endoftext|>", "<s>"], ["</s>", "<pad>"]),
    "sequence": {"type": "Sequence", "processors": [BYTE_LEVEL, template(["<s>"], ["</s>"])]},
    "roberta": pair("RobertaProcessing"),
    "bert": pair("BertProcessing"),
}
FLAGS: list[dict[str, Any]] = [
    {},
    {"add_bos_token": True},
    {"add_bos_token": False, "add_eos_token": True},
    {"add_bos_token": None},
]


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.plain_prompt(text, is_whole=True).ids


@pytest.mark.parametrize("name", POST_PROCESSORS)
def test_post_processors_equal_transformers(name: str, tmp_path: Path) -> None:
    spec = tokenizer_json([added_entry(text, VOCAB[text]) for text in CONTROL])
    spec["post_processor"] = POST_PROCESSORS[name]
    for flags in FLAGS:
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", **flags}
        write(tmp_path, {"tokenizer.json": spec, "tokenizer_config.json": config})
        theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
        ours = Tokenizer.load(tmp_path)
        for text in ("Hello", " ab", ""):
            assert whole(ours, text) == theirs(text).input_ids, (flags, text)


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "Qwen2Tokenizer"])
def test_flags_of_vocab_and_merges_equal_transformers(name: str, tmp_path: Path) -> None:
    for flags in FLAGS:
        config = {"tokenizer_class": name, "bos_token": "<s>", "eos_token": "</s>", **flags}
        files = {"vocab.json": VOCAB, "merges.txt": "#version: 0.2\na b\n"}
        write(tmp_path, {**files, "tokenizer_config.json": config})
        theirs = getattr(transformers, name).from_pretrained(tmp_path)
        assert whole(Tokenizer.load(tmp_path), "Hello") == theirs("Hello").input_ids, flags


def test_flags_of_sentencepiece_equal_transformers(tmp_path: Path) -> None:
    for flags in FLAGS:
        write(tmp_path, {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", **flags}})
        (tmp_path / "tokenizer.model").write_bytes(trained("bpe bytes"))
        theirs = transformers.LlamaTokenizer.from_pretrained(tmp_path)
        assert whole(Tokenizer.load(tmp_path), "the") == theirs("the").input_ids, flags


def test_a_text_to_continue_has_no_end() -> None:
    spec = tokenizer_json([]) | {"post_processor": POST_PROCESSORS["BOS and EOS"]}
    ours = Tokenizer.from_json(spec)
    prompt = ours.plain_prompt("H", is_whole=False)
    assert prompt.ids == [BOS, VOCAB["H"]]
    assert [span.is_control for span in prompt.spans] == [True, False]
    assert whole(ours, "H") == [BOS, VOCAB["H"], EOS]
    assert ours.encode("H") == [VOCAB["H"]]


class _Gguf:
    def __init__(self, **keys: Any) -> None:
        self.metadata = {f"tokenizer.ggml.{name}": value for name, value in keys.items()}


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize(
    ("flags", "before", "after"),
    [
        ({}, {"llama"}, ()),
        ({"add_bos_token": True}, {"gpt2", "llama"}, ()),
        ({"add_bos_token": False}, (), ()),
        ({"add_bos_token": True, "add_eos_token": True}, {"gpt2", "llama"}, {"gpt2", "llama"}),
        ({"add_bos_token": False, "add_eos_token": True}, (), {"gpt2", "llama"}),
    ],
)
def test_flags_of_gguf(kind: str, flags: Any, before: Any, after: Any) -> None:
    """As in llama.cpp."""
    if kind == "llama":
        names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "H"]
        keys: dict[str, Any] = {"scores": [0.0] * len(names)}
        types = [2, 3, 3, *[6] * 256, 1, 1]
    else:
        names = list(VOCAB)
        keys = {"merges": ["a b"], "pre": "gpt-2"}
        types = [3 if name in CONTROL else 1 for name in names]
    ids = {"bos_token_id": names.index("<s>"), "eos_token_id": names.index("</s>")}
    file = _Gguf(model=kind, tokens=names, token_type=types, **keys, **ids, **flags)
    files = tokenizer_files(file.metadata)
    config: Any = tokenizer_config_json(file)  # type: ignore[arg-type]
    ours = Tokenizer.from_files({**files, "tokenizer_config.json": json.dumps(config).encode()})
    found = whole(ours, "H")
    assert (found[0] == ids["bos_token_id"]) == (kind in before)
    assert (found[-1] == ids["eos_token_id"]) == (kind in after)
    assert set(ours.encode("H")).isdisjoint(ids.values())


def test_gguf_placeholder_as_pad_token() -> None:
    """It is not in the vocabulary, and must not get the id of another token."""
    names = ["<pad1>", *VOCAB]
    types = [5, *(3 if name in CONTROL else 1 for name in VOCAB)]
    keys = {"model": "gpt2", "pre": "gpt-2", "merges": ["a b"], "padding_token_id": 0}
    file = _Gguf(tokens=names, token_type=types, **keys)
    assert "pad_token" not in tokenizer_config_json(file)  # type: ignore[arg-type]


def test_tekken_equals_transformers(tmp_path: Path) -> None:
    write(tmp_path, {"tekken.json": tekken(), "config.json": {"model_type": "mistral"}})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for path in (tmp_path, tmp_path / "tekken.json"):
        ours = Tokenizer.load(path)
        for text in ("Hi ab abc 12 Vi\u1ec7t pad", "[INST]é[/INST]</s><SPECIAL_19>", "", " \n"):
            ids = theirs.encode(text, add_special_tokens=False)
            assert ours.encode_rendered(text, []) == ids
            assert ours.decode(ids) == text
        assert (ours.bos_id, ours.eos_ids, ours.vocab_size) == (1, (2,), 20 + 259)
        assert whole(ours, "a") == [1, 20 + ord("a")]  # as mistral-common
        assert not {1, 2, 3} & set(ours.encode("<s></s>[INST]"))


def test_tekken_without_a_list_of_control_tokens() -> None:
    """The first files have none; a template writes the usual ones."""
    spec = tekken()
    del spec["special_tokens"]
    config = {"chat_template": "{{ bos_token }}[INST]{{ messages[0].content }}[/INST]"}
    files = {"tekken.json": spec, "tokenizer_config.json": config}
    ours = Tokenizer.from_files({name: json.dumps(x).encode() for name, x in files.items()})
    ids = ours.prompt([{"role": "user", "content": "ab"}]).ids
    assert ids == [1, 3, 20 + 256, 4]
    assert ours.special_tokens["[SYSTEM_PROMPT]"] == 17


def _changed(name: str, **changes: Any) -> dict[str, Any]:
    spec = tekken()
    spec[name] = spec[name] | changes
    return spec


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ([], "config"),
        ({}, "config"),
        (_changed("config", pattern=None), "pattern"),
        (_changed("config", pattern="("), "pattern"),
        (_changed("config", default_vocab_size=-1), "default_vocab_size"),
        (_changed("config", default_num_special_tokens=3), "default_num_special_tokens"),
        (tekken(vocab=[]), "vocab"),
        (tekken(vocab=tekken()["vocab"][1:]), "byte 0"),
        (tekken(vocab=[{"token_bytes": "?"}]), "vocab[0].token_bytes"),
        (tekken(vocab=tekken()["vocab"][:1] * 2), "twice"),
        (tekken(special_tokens=7), "special_tokens"),
        (tekken(special_tokens=[{"rank": 1, "token_str": "x"}]), "special_tokens[0].rank"),
        (tekken(special_tokens=[{"rank": 0, "token_str": ""}]), "special_tokens[0].token_str"),
    ],
)
def test_invalid_tekken_field_is_named(spec: Any, named: str) -> None:
    with pytest.raises(BadModelFile, match=r"^tekken\.json: ") as caught:
        Tokenizer.from_files({"tekken.json": json.dumps(spec).encode()})
    assert named in str(caught.value)


def test_tiktoken_model_equals_transformers(tmp_path: Path) -> None:
    tokens = [*(bytes([byte]) for byte in range(256)), b"ab", b" the", b"123"]
    ranks = "".join(f"{base64.b64encode(t).decode()} {n}\n" for n, t in enumerate(tokens))
    entry = {"content": "<|im_end|>", "special": True, "normalized": False}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {"261": entry},
        "eos_token": "<|im_end|>",
        "extra_special_tokens": ["<|more|>"],
    }
    write(tmp_path, {"tiktoken.model": ranks, "tokenizer_config.json": config})
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    text = "ab the 1234 xé<|im_end|><|more|><|reserved_token_260|>"
    assert ours.encode_rendered(text, []) == theirs.encode(text, add_special_tokens=False)
    assert ours.special_tokens["<|more|>"] == 262
    assert ours.eos_ids == (261,)


def test_split_pattern_of_kimi(tmp_path: Path) -> None:
    """Its class splits Chinese characters from other letters."""
    tokens = [*(bytes([byte]) for byte in range(256)), "你好".encode(), "a你".encode(), b"Ab"]
    ranks = "".join(f"{base64.b64encode(t).decode()} {n}\n" for n, t in enumerate(tokens))
    config = {"tokenizer_class": "TikTokenTokenizer"}
    write(tmp_path, {"tiktoken.model": ranks, "tokenizer_config.json": config})
    ours = Tokenizer.load(tmp_path)
    assert ours.encode("a你好Ab") == [ord("a"), 256, 258]
