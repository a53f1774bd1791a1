"""Rank files of `tiktoken`, which contain neither a split pattern nor control tokens."""

import binascii
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import regex

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.core.added_tokens import AddedToken
from swiftchat.tokenizer.core.bpe import BytePairEncoding
from swiftchat.tokenizer.core.byte_level import symbols_of, to_bytes, to_symbols
from swiftchat.tokenizer.core.pipeline import TokenizerPipeline
from swiftchat.tokenizer.core.pretokenizer import Split, cut
from swiftchat.tokenizer.huggingface.checks import MAX_IDS
from swiftchat.tokenizer.huggingface.declared_tokens import DeclaredTokens
from swiftchat.tokenizer.huggingface.patterns import CL100K, GPT2, KIMI, LLAMA3, O200K, QWEN2
from swiftchat.tokenizer.huggingface.post_processor import with_configured_ends

_MAX_TOKEN_CHARACTERS = 1 << 12
_FIRST_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d{1,8}(\r?\n|$)")


@dataclass(frozen=True)
class _Encoding:
    """Pattern, control tokens and normalizer that belong to a rank file.

    Ids in `control` are relative to the number of ranks.
    """

    pattern: str
    control: Mapping[str, int]
    normalize: Callable[[str], str] = str
    bos: str | None = None
    eos: str | None = "<|endoftext|>"


_FILL_IN = {"<|fim_prefix|>": 2, "<|fim_middle|>": 3, "<|fim_suffix|>": 4}
_O200K = {"<|endoftext|>": 1, "<|endofprompt|>": 20}
_HARMONY = {
    "<|startoftext|>": 0,
    "<|return|>": 4,
    "<|constrain|>": 5,
    "<|channel|>": 7,
    "<|start|>": 8,
    "<|end|>": 9,
    "<|message|>": 10,
    "<|call|>": 14,
}
_QWEN = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
# Common to Llama 3 and its successors.
_LLAMA3 = {
    "<|begin_of_text|>": 0,
    "<|end_of_text|>": 1,
    "<|start_header_id|>": 6,
    "<|end_header_id|>": 7,
    "<|eot_id|>": 9,
}
# By file name; Meta's tokenizer.model is a rank file from Llama 3 on.
_ENCODINGS: Mapping[str, _Encoding] = {
    "r50k_base.tiktoken": _Encoding(GPT2, {"<|endoftext|>": 0}),
    # The control token's id is below those of other tokens.
    "p50k_base.tiktoken": _Encoding(GPT2, {"<|endoftext|>": -24}),
    "cl100k_base.tiktoken": _Encoding(
        CL100K, {"<|endoftext|>": 1, **_FILL_IN, "<|endofprompt|>": 20}
    ),
    "o200k_base.tiktoken": _Encoding(O200K, _O200K),
    "o200k_harmony.tiktoken": _Encoding(O200K, _O200K | _HARMONY),
    "qwen.tiktoken": _Encoding(QWEN2, _QWEN, partial(unicodedata.normalize, "NFC")),
    # As transformers reads a file of this name; the files beside it declare the control tokens.
    "tiktoken.model": _Encoding(LLAMA3, {}, eos=None),
    "tokenizer.model": _Encoding(LLAMA3, _LLAMA3, bos="<|begin_of_text|>", eos="<|end_of_text|>"),
}
_KIMI = _Encoding(KIMI, {}, eos=None)
_CLASSES = {"QWenTokenizer": _ENCODINGS["qwen.tiktoken"], "TikTokenTokenizer": _KIMI}


def is_tiktoken(data: bytes) -> bool:
    """Return whether the first line is a token in base64, a space and a rank."""
    return _FIRST_LINE.match(data) is not None


def rank_file_names(name: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the BOS and EOS tokens of a rank file by role; raises as `tiktoken_pipeline`."""
    encoding = _encoding(name, config)
    roles = {"bos_token": encoding.bos, "eos_token": encoding.eos}
    return {role: text for role, text in roles.items() if text is not None}


def tiktoken_pipeline(
    data: bytes, name: str, config: Mapping[str, Any], declared: DeclaredTokens
) -> TokenizerPipeline:
    """Build from a rank file; ids equal those of `tiktoken`.

    The `tokenizer_class` in `config`, else the file's `name`, determines the split pattern and the
    control tokens, which `declared` adds to and overrides. Raises `BadModelFile` naming the
    invalid line or the unknown name.
    """
    encoding = _encoding(name, config)
    ranks = _ranks(data, name)
    control = {content: len(ranks) + n for content, n in encoding.control.items()}
    by_id = {n: AddedToken(n, content, special=True) for content, n in control.items()}
    by_id |= {n: replace(token, id=n) for n, token in declared.by_id.items()}
    if max(declared.by_id, default=0) >= len(ranks):
        # transformers numbers the tokens without a gap.
        for n in range(len(ranks), max(declared.by_id)):
            by_id.setdefault(n, AddedToken(n, f"<|reserved_token_{n}|>", special=True))
    duplicates = by_id.keys() & set(ranks.values())
    if duplicates:
        raise BadModelFile(f"{name}: {min(duplicates)} is the id of a control token and a rank")
    if len({token.content for token in by_id.values()}) < len(by_id):
        raise BadModelFile(f"{name}: a control token has two ids")
    added = declared.added_to(by_id.values(), ranks | {t.content: n for n, t in by_id.items()})
    pipeline = rank_pipeline(ranks, added, regex.compile(encoding.pattern), encoding.normalize)
    return with_configured_ends(pipeline, config, declared)


def rank_pipeline(
    ranks: Mapping[str, int],
    added: tuple[AddedToken, ...],
    pattern: Any,
    normalize: Callable[[str], str] = str,
) -> TokenizerPipeline:
    """Return the pipeline of a vocabulary in which the lowest id is merged first.

    `ranks` are ids by token in the byte-level alphabet; `pattern` is compiled by `regex`.
    """
    bpe = BytePairEncoding(ranks, ranks, ignore_merges=True)
    split = Split(pattern)
    token_bytes = lru_cache(1 << 16)(to_bytes)
    return TokenizerPipeline(
        kind="byte-level BPE",
        vocab=ranks,
        added_tokens=added,
        normalize=normalize,
        words=lambda text, _: cut(text, [split]),
        encode_word=lambda word: bpe.encode(to_symbols(word)),
        make_decoder=lambda: token_bytes,
    )


def _encoding(name: str, config: Mapping[str, Any]) -> _Encoding:
    encoding = _CLASSES.get(str(config.get("tokenizer_class")), _ENCODINGS.get(name))
    if encoding is None:
        raise BadModelFile(
            f"{name}: the split pattern of this rank file is unknown",
            f"known files: {', '.join(_ENCODINGS)}; known classes: {', '.join(_CLASSES)}",
        )
    return encoding


def _ranks(data: bytes, name: str) -> dict[str, int]:
    """Return ranks by token, written in the byte-level alphabet."""
    fields = data.split()
    if len(fields) % 2 or len(fields) > 2 * MAX_IDS:
        raise BadModelFile(f"{name}: a line is truncated, or there are too many")
    try:
        tokens = [binascii.a2b_base64(field, strict_mode=True) for field in fields[::2]]
        ids = list(map(int, fields[1::2]))
    except ValueError:
        raise BadModelFile(
            f"{name}: line {_invalid_line(fields)} is not a token and a rank"
        ) from None
    if not ids or min(ids) < 0 or max(ids) >= MAX_IDS:
        raise BadModelFile(f"{name} has no ranks, or ranks that are negative or too large")
    if not 0 < min(map(len, tokens)) <= max(map(len, tokens)) <= _MAX_TOKEN_CHARACTERS:
        raise BadModelFile(f"{name} has an empty token or one that is too long")
    ranks = dict(zip(symbols_of(tokens), ids, strict=True))
    if len(ranks) < len(ids) or len(set(ids)) < len(ids):
        raise BadModelFile(f"{name}: a token has two ranks, or two tokens have the same rank")
    missing = [byte for byte in range(256) if symbols_of([bytes([byte])])[0] not in ranks]
    if missing:
        raise BadModelFile(f"{name} has no token for the byte {missing[0]}")
    return ranks


def _invalid_line(fields: list[bytes]) -> int:
    for number in range(len(fields) // 2):
        try:
            binascii.a2b_base64(fields[2 * number], strict_mode=True)
            int(fields[2 * number + 1])
        except ValueError:
            return number + 1
    return 0
