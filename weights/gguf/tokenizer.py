"""The tokenizer inside a GGUF file as the files that a Hugging Face directory has of it."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.gguf.sentencepiece import SENTENCEPIECE_KINDS, tokenizer_model

__all__ = ["adds_bos", "token_at", "tokenizer_class", "tokenizer_files", "tokenizer_json"]

# Kinds of tokens in `tokenizer.ggml.token_type`.
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5

_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_PATTERN = _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CJK = "[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK_LLM_PATTERNS = (
    r"[\r\n]",
    # Letters with a case. Those that look like another letter are written as numbers.
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
    "Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ"
    "Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    _CJK,
    r"\p{N}",
)
_DEEPSEEK_CODER_PATTERNS = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
_DEEPSEEK3_PATTERNS = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_BLOOM_PATTERN = r" ?[^(\s|.,!?…。，、।۔،)]+"
_FALCON_PUNCTUATION = r"[\p{P}$+<=>^~|`]+"


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(*patterns: str) -> dict[str, Any]:
    """Each pattern cuts what those before it left; then come the bytes."""
    return _sequence(*map(_isolated, patterns), _byte_level(use_regex=False))


def _isolated(pattern: str, behavior: str = "Isolated") -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": behavior,
        "invert": False,
    }


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


_GPT2 = _byte_level(use_regex=True)
_GPT2_AND_DIGITS = _sequence({"type": "Digits", "individual_digits": True}, _GPT2)
_FALCON = _sequence(
    _isolated(_FALCON_PUNCTUATION, "Contiguous"),
    _isolated(_GPT2_PATTERN),
    _isolated("[0-9][0-9][0-9]"),
    _byte_level(use_regex=False),
)

_LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral")
# What `tokenizer.ggml.pre` stands for. Files older than that key have the pattern of GPT-2.
_PRE_TOKENIZERS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        **dict.fromkeys(("default", "gpt-2", "phi-2", "mpt", "olmo"), _GPT2),
        **dict.fromkeys(
            ("smollm", "starcoder", "refact", "command-r", "codeshell"), _GPT2_AND_DIGITS
        ),
        **dict.fromkeys(
            (*_LLAMA3, "dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _split(_LLAMA3_PATTERN)
        ),
        **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _split(_QWEN2_PATTERN)),
        "qwen35": _split(_QWEN35_PATTERN),
        **dict.fromkeys(("gpt-4o", "llama4"), _split(_GPT4O_PATTERN)),
        "tekken": _split(_TEKKEN_PATTERN),
        "deepseek-llm": _split(*_DEEPSEEK_LLM_PATTERNS),
        "deepseek-coder": _split(*_DEEPSEEK_CODER_PATTERNS),
        "deepseek-v3": _split(*_DEEPSEEK3_PATTERNS),
        "falcon": _FALCON,
        **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), _split(_BLOOM_PATTERN)),
    }
)
_NFC = ("qwen2", "deepseek-r1-qwen", "stablelm2", "mpt", "olmo", "command-r")
_WHOLE_WORDS_FIRST = (*_LLAMA3, "tekken")
_BOS_BY_DEFAULT = (*_LLAMA3, "tekken")


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """The content of `tokenizer.json`, or of `tokenizer.model` for SentencePiece, by name.

    Each vocabulary gets the file that can say all of it: a `tokenizer.json` knows no scores of
    a BPE, and so no ties. Raises `BadModelFile` as `tokenizer_json` and `tokenizer_model` do.
    """
    if metadata.get("tokenizer.ggml.model") in SENTENCEPIECE_KINDS:
        tokens, kinds = _tokens(metadata)
        return {"tokenizer.model": tokenizer_model(metadata, tokens, kinds)}
    text = json.dumps(tokenizer_json(metadata), indent=2, ensure_ascii=False)
    return {"tokenizer.json": (text + "\n").encode()}


def tokenizer_class(metadata: Mapping[str, Any]) -> str:
    """The class of transformers that reads the file."""
    classes = {"llama": "LlamaTokenizer", "t5": "T5Tokenizer"}
    if str(metadata.get("general.architecture")).startswith("gemma"):
        # Llama's puts a space before the text, whatever the vocabulary says.
        classes["llama"] = "GemmaTokenizer"
    return classes.get(str(metadata.get("tokenizer.ggml.model")), "PreTrainedTokenizerFast")


def tokenizer_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Build the `tokenizer.json` of a byte-level BPE vocabulary.

    Raises `BadModelFile` when the vocabulary is of another kind, its pre-tokenizer is unknown,
    or tokens and merges contradict each other. Placeholders for ids without a token (kind 5)
    are left out, as they are in the original.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise BadModelFile(
            f"the GGUF vocabulary is of the kind {str(model)[:40]!r}, which is not supported yet",
            "supported: gpt2 (byte-level BPE), llama and t5 (SentencePiece)",
        )
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    if pre not in _PRE_TOKENIZERS:
        raise BadModelFile(
            f"unknown GGUF pre-tokenizer {pre[:40]!r}",
            f"known: {', '.join(sorted(_PRE_TOKENIZERS))}",
        )
    tokens, kinds = _tokens(metadata)
    vocab = _vocab(tokens, kinds)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokens, kinds),
        "normalizer": {"type": "NFC"} if pre in _NFC else None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": _post_processor(metadata, pre, tokens),
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in _WHOLE_WORDS_FIRST,
            "vocab": vocab,
            "merges": _merges(metadata, vocab),
        },
    }


def token_at(metadata: Mapping[str, Any], key: str) -> str | None:
    """The token that the metadata `key` gives by its id, or None where the key is absent."""
    token_id = metadata.get(key)
    if token_id is None:
        return None
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
        raise BadModelFile(f"{key} is {str(token_id)[:40]}, of {len(tokens)} tokens")
    return tokens[token_id]


def adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether plain text is encoded with a leading BOS token."""
    default = (
        metadata.get("tokenizer.ggml.pre") in _BOS_BY_DEFAULT
        or metadata.get("tokenizer.ggml.model") == "llama"
    )
    return bool(metadata.get("tokenizer.ggml.add_bos_token", default))


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadModelFile(f"{key} is missing or no list of strings")
    return value


def _tokens(metadata: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    kinds = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise BadModelFile("tokenizer.ggml.token_type does not match tokenizer.ggml.tokens")
    return tokens, kinds


def _vocab(tokens: list[str], kinds: list[Any]) -> dict[str, int]:
    vocab: dict[str, int] = {}
    for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind == _UNUSED:
            continue
        if token in vocab:
            raise BadModelFile(f"tokens {vocab[token]} and {token_id} are both {token[:40]!r}")
        vocab[token] = token_id
    if not vocab:
        raise BadModelFile("tokenizer.ggml.tokens is empty")
    return vocab


def _added_tokens(tokens: list[str], kinds: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != _USER_DEFINED,
        }
        for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) and token
    ]


def _merges(metadata: Mapping[str, Any], vocab: Mapping[str, int]) -> list[str]:
    """As strings, not pairs: `tokenizers` reads both, and these load in half the time."""
    merges = []
    for number, text in enumerate(_strings(metadata, "tokenizer.ggml.merges")):
        left, space, right = text.partition(" ")
        if not space or left not in vocab or right not in vocab or left + right not in vocab:
            raise BadModelFile(f"merge {number}, {text[:40]!r}, does not join two tokens to one")
        merges.append(text)
    return merges


def _post_processor(metadata: Mapping[str, Any], pre: str, tokens: list[str]) -> dict[str, Any]:
    plain = _byte_level(use_regex=True)
    bos = token_at(metadata, "tokenizer.ggml.bos_token_id")
    if not adds_bos(metadata) or bos is None:
        return plain
    bos_id = metadata["tokenizer.ggml.bos_token_id"]
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    second = {"SpecialToken": {"id": bos, "type_id": 1}}
    template = {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            first,
            {"Sequence": {"id": "A", "type_id": 0}},
            second,
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }
    return {"type": "Sequence", "processors": [plain, template]}
