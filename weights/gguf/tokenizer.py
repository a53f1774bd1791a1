"""The tokenizer in a GGUF file as the tokenizer files of a Hugging Face model."""

import json
from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.gguf.end_tokens import CONTROL, is_end_of_turn, special_id
from swiftchat.weights.gguf.pretokenizers import LLAMA3, PRE_TOKENIZERS, byte_level
from swiftchat.weights.gguf.sentencepiece import SENTENCEPIECE_KINDS, tokenizer_model

# Token types in `tokenizer.ggml.token_type`.
_UNKNOWN, _USER_DEFINED, _UNUSED = 2, 4, 5

# The kind of vocabulary of Gemma 4: SentencePiece's pieces with merges.
_GEMMA4 = "gemma4"
# Tokens of Phi-3 that do not absorb the white space after them.
_PHI3_KEEPING = ("<unk>", "<s>", "<|endoftext|>")
# Pre-tokenizers with an NFC normalizer, with `ignore_merges`, and with a leading BOS token.
_NFC = ("qwen2", "qwen35", "deepseek-r1-qwen", "stablelm2", "mpt", "olmo", "command-r")
_IGNORE_MERGES = (*LLAMA3, "tekken", "youtu", "glm4", "glm5", "minicpm5")
_BOS_BY_DEFAULT = (*LLAMA3, "tekken")


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the content of `tokenizer.json`, or of `tokenizer.model` for SentencePiece, by name.

    SentencePiece vocabularies need `tokenizer.model`: a BPE in `tokenizer.json` has no scores,
    which decide ties. Raises as `tokenizer_json` and `tokenizer_model`.
    """
    if _text(metadata, "tokenizer.ggml.model") in SENTENCEPIECE_KINDS:
        tokens, types = typed_tokens(metadata)
        return {"tokenizer.model": tokenizer_model(metadata, tokens, types)}
    text = json.dumps(tokenizer_json(metadata), indent=2, ensure_ascii=False)
    return {"tokenizer.json": (text + "\n").encode()}


def tokenizer_class(metadata: Mapping[str, Any]) -> str:
    """Return the name of the transformers class that reads the file."""
    classes = {"llama": "LlamaTokenizer", "t5": "T5Tokenizer"}
    if str(metadata.get("general.architecture")).startswith("gemma"):
        # LlamaTokenizer always prepends a space.
        classes["llama"] = "GemmaTokenizer"
    return classes.get(str(metadata.get("tokenizer.ggml.model")), "PreTrainedTokenizerFast")


def tokenizer_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `tokenizer.json` of a byte-level BPE vocabulary.

    Raises `BadModelFile` for another kind of vocabulary, an unknown pre-tokenizer, or merges
    that do not fit the tokens. Placeholders for unused ids (type 5) are left out.
    """
    model = _text(metadata, "tokenizer.ggml.model")
    if model == _GEMMA4:
        return _gemma4_json(metadata)
    if model != "gpt2":
        raise BadModelFile(
            f"GGUF vocabulary of the unsupported kind {model!r:.40}",
            "supported: gpt2 (byte-level BPE), gemma4 (BPE), llama and t5 (SentencePiece)",
        )
    pre = _text(metadata, "tokenizer.ggml.pre") or "default"
    if pre not in PRE_TOKENIZERS:
        raise BadModelFile(
            f"unknown GGUF pre-tokenizer {pre[:40]!r}: how it splits text is not known",
            "a directory of the same model with tokenizer.json and *.safetensors may run",
        )
    tokens, types = typed_tokens(metadata)
    vocab = _vocab(tokens, types)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokens, types),
        "normalizer": {"type": "NFC"} if pre in _NFC else None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "post_processor": _post_processor(metadata, pre, tokens),
        "decoder": byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in _IGNORE_MERGES,
            "vocab": vocab,
            "merges": _merges(metadata, vocab),
        },
    }


def _gemma4_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `tokenizer.json` of a BPE over characters, with tokens of bytes for the others."""
    tokens, types = typed_tokens(metadata)
    vocab = _vocab(tokens, types)
    space, mark = {"String": " "}, "\u2581"
    post_processor = _post_processor(metadata, _GEMMA4, tokens)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokens, types),
        "normalizer": {"type": "Replace", "pattern": space, "content": mark},
        "pre_tokenizer": None,
        "post_processor": next(
            (each for each in post_processor.get("processors", ()) if "single" in each), None
        ),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": mark}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": token_at(metadata, "unknown"),
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": _merges(metadata, vocab),
        },
    }


def vocabulary_notes(metadata: Mapping[str, Any]) -> list[str]:
    """Return what a user should know about how the vocabulary is read."""
    if metadata.get("tokenizer.ggml.model") == "gpt2" and not metadata.get("tokenizer.ggml.pre"):
        return ["the file does not say how its tokenizer splits text: it is split as for GPT-2"]
    return []


def token_at(metadata: Mapping[str, Any], name: str) -> str | None:
    """Return the token of `tokenizer.ggml.NAME_token_id`.

    None as for `special_id`, and for a placeholder, which is no token of the vocabulary.
    """
    tokens, types = typed_tokens(metadata)
    token_id = special_id(metadata, name, len(tokens))
    return None if token_id is None or types[token_id] == _UNUSED else tokens[token_id]


def adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Return whether text is encoded with a leading BOS token."""
    default = metadata.get("tokenizer.ggml.pre") in _BOS_BY_DEFAULT or metadata.get(
        "tokenizer.ggml.model"
    ) in ("llama", _GEMMA4)
    return bool(metadata.get("tokenizer.ggml.add_bos_token", default))


def adds_eos(metadata: Mapping[str, Any]) -> bool:
    """Return whether a whole text is encoded with an EOS token at its end."""
    default = metadata.get("tokenizer.ggml.model") == "t5"
    return bool(metadata.get("tokenizer.ggml.add_eos_token", default))


def _text(metadata: Mapping[str, Any], key: str) -> str | None:
    """Return a text, None if it is absent; `BadModelFile` for a value of another type."""
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise BadModelFile(f"{key} is not a text")
    return value


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadModelFile(f"{key} is missing or not a list of strings")
    return value


def declared_tokens(metadata: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tokens that a `tokenizer.model` cannot describe, as `added_tokens_decoder`.

    As in llama.cpp, a space is put before the text that follows a token that a user has defined, as
    at the beginning of a text. The sentencepiece library does not do that. The tokens of Phi-3
    absorb the white space after them, so that the line end in `<|user|>\\n` has no token.
    """
    if metadata.get("tokenizer.ggml.model") != "llama":
        return {}
    tokens, types = typed_tokens(metadata)
    absorbs = _is_phi3(metadata)
    has_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    entries = _added_tokens(tokens, types)
    return {
        str(entry.pop("id")): {**entry, "rstrip": absorbs and entry["content"] not in _PHI3_KEEPING}
        for entry in entries
        if absorbs or (has_prefix and not entry["special"])
    }


def _is_phi3(metadata: Mapping[str, Any]) -> bool:
    """Return whether a SentencePiece vocabulary is Phi-3's, also as another architecture."""
    name = str(metadata.get("general.name")).lower()
    return metadata.get("general.architecture") in ("phi3", "phimoe") or any(
        spelling in name for spelling in ("phi-3", "phi3")
    )


def typed_tokens(metadata: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    """Return the tokens by id, and their types; `BadModelFile` if they are not valid.

    The type of a token that ends turns is `CONTROL`, whatever the file says.
    """
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise BadModelFile("tokenizer.ggml.token_type does not match tokenizer.ggml.tokens")
    ends = is_end_of_turn(tokens, types)
    return tokens, [CONTROL if is_end else t for t, is_end in zip(types, ends, strict=True)]


def _vocab(tokens: list[str], types: list[Any]) -> dict[str, int]:
    vocab: dict[str, int] = {}
    for token_id, (token, token_type) in enumerate(zip(tokens, types, strict=True)):
        if token_type == _UNUSED:
            continue
        if token in vocab:
            raise BadModelFile(f"tokens {vocab[token]} and {token_id} are both {token[:40]!r}")
        vocab[token] = token_id
    if not vocab:
        raise BadModelFile("tokenizer.ggml.tokens is empty")
    return vocab


def _added_tokens(tokens: list[str], types: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": token_type != _USER_DEFINED,
        }
        for token_id, (token, token_type) in enumerate(zip(tokens, types, strict=True))
        if token_type in (_UNKNOWN, CONTROL, _USER_DEFINED) and token
    ]


def _merges(metadata: Mapping[str, Any], vocab: Mapping[str, int]) -> list[str]:
    """Return the merges as strings: `tokenizers` loads them twice as fast as pairs."""
    merges = []
    for number, text in enumerate(_strings(metadata, "tokenizer.ggml.merges")):
        left, space, right = text.partition(" ")
        if not space or left not in vocab or right not in vocab or left + right not in vocab:
            raise BadModelFile(f"merge {number}, {text[:40]!r}, does not join two tokens")
        merges.append(text)
    return merges


def _post_processor(metadata: Mapping[str, Any], pre: str, tokens: list[str]) -> dict[str, Any]:
    """Return the post-processor, which adds the BOS and EOS tokens of a whole text."""
    plain = byte_level(use_regex=True)
    bos = token_at(metadata, "bos") if adds_bos(metadata) else None
    eos = token_at(metadata, "eos") if adds_eos(metadata) else None
    if bos is None and eos is None:
        return plain

    def text(name: str, number: int) -> list[dict[str, Any]]:
        parts = [("SpecialToken", bos), ("Sequence", name), ("SpecialToken", eos)]
        return [{kind: {"id": key, "type_id": number}} for kind, key in parts if key is not None]

    added = {"bos": bos, "eos": eos}
    ids = {
        token: metadata[f"tokenizer.ggml.{name}_token_id"]
        for name, token in added.items()
        if token is not None
    }
    template = {
        "type": "TemplateProcessing",
        "single": text("A", 0),
        "pair": [*text("A", 0), *text("B", 1)],
        "special_tokens": {
            token: {"id": token, "ids": [token_id], "tokens": [token]}
            for token, token_id in ids.items()
        },
    }
    return {"type": "Sequence", "processors": [plain, template]}
