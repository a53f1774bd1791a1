"""Mistral's `tekken.json`: ranked tokens, the split pattern, and the control tokens before them."""

import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Never

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.core.added_tokens import AddedToken
from swiftchat.tokenizer.core.byte_level import symbols_of
from swiftchat.tokenizer.core.pipeline import TokenizerPipeline
from swiftchat.tokenizer.huggingface.checks import MAX_IDS, compiled
from swiftchat.tokenizer.huggingface.declared_tokens import MAX_ADDED_TOKENS, DeclaredTokens
from swiftchat.tokenizer.huggingface.tiktoken import rank_pipeline

TEKKEN_NAMES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
}
_MAX_TOKEN_CHARACTERS = 1 << 12
# The control tokens of the first files, which do not list them.
_OLD_CONTROL_TOKENS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)


def is_tekken(name: str) -> bool:
    """Return whether a file of this name is such a vocabulary."""
    return "tekken" in name and name.endswith(".json")


def tekken_pipeline(spec: Any, name: str, declared: DeclaredTokens) -> TokenizerPipeline:
    """Build from the parsed file `name`; ids equal those of `mistral-common`.

    The ids of control tokens come first. A whole text begins with BOS. Raises `BadModelFile`
    naming the wrong field.
    """
    config = spec.get("config") if isinstance(spec, dict) else None
    if not isinstance(config, dict):
        _reject(name, "config", "is missing or not an object")
    control = _control_tokens(spec, config, name)
    size = config.get("default_vocab_size")
    if size is not None and not _is_count(size):
        _reject(name, "config.default_vocab_size", "is not a number of tokens")
    entries = spec.get("vocab")
    if not isinstance(entries, list) or not entries or len(entries) > MAX_IDS:
        _reject(name, "vocab", "is missing, empty or not a list")
    if size is not None:
        entries = entries[: max(size - len(control), 0)]
    tokens = symbols_of(_tokens(entries, name)) if entries else []
    ranks = {token: number for number, token in enumerate(tokens, start=len(control))}
    if len(ranks) < len(entries):
        _reject(name, "vocab", "has a token twice")
    missing = [byte for byte in range(256) if symbols_of([bytes([byte])])[0] not in ranks]
    if missing:
        _reject(name, "vocab", f"has no token for the byte {missing[0]}")
    try:
        pattern = compiled({"pattern": {"Regex": config.get("pattern")}}, "config")
    except BadModelFile as error:
        raise BadModelFile(f"{name}: {str(error).removeprefix('tokenizer.json: ')}") from None
    own = tuple(AddedToken(n, token, special=True) for n, token in enumerate(control))
    # A control token is no text, even if a vocabulary has its text as a token.
    added = declared.added_to(own, ranks | {token.content: token.id for token in own})
    pipeline = rank_pipeline(ranks, added, pattern)
    bos = declared.named["bos_token"].content
    before = tuple(token.id for token in added if token.content == bos)
    return TokenizerPipeline(**{**vars(pipeline), "before": before})


def _control_tokens(spec: Mapping[str, Any], config: Mapping[str, Any], name: str) -> list[str]:
    entries = spec.get("special_tokens")
    if entries is None:
        entries = [{"rank": n, "token_str": text} for n, text in enumerate(_OLD_CONTROL_TOKENS)]
    if not isinstance(entries, list) or len(entries) > MAX_ADDED_TOKENS:
        _reject(name, "special_tokens", "is not a list, or too long")
    found: dict[int, str] = {}
    for number, entry in enumerate(entries):
        text = entry.get("token_str") if isinstance(entry, dict) else None
        rank = entry.get("rank") if isinstance(entry, dict) else None
        if not isinstance(text, str) or not 0 < len(text) <= _MAX_TOKEN_CHARACTERS:
            _reject(name, f"special_tokens[{number}].token_str", "is not a short string")
        if not isinstance(rank, int) or not 0 <= rank < len(entries) or rank in found:
            _reject(name, f"special_tokens[{number}].rank", "is not one of 0 to the number of them")
        found[rank] = text
    if len(set(found.values())) < len(found):
        _reject(name, "special_tokens", "have a token twice")
    count = config.get("default_num_special_tokens", len(found))
    if not _is_count(count) or not len(found) <= count <= MAX_ADDED_TOKENS:
        _reject(
            name, "config.default_num_special_tokens", "is smaller than their list, or too large"
        )
    return [found.get(n, f"<SPECIAL_{n}>") for n in range(count)]


def _tokens(entries: list[Any], name: str) -> Iterator[bytes]:
    for number, entry in enumerate(entries):
        value = entry.get("token_bytes") if isinstance(entry, dict) else None
        try:
            token = binascii.a2b_base64(value, strict_mode=True) if isinstance(value, str) else b""
        except ValueError:
            token = b""
        if not 0 < len(token) <= _MAX_TOKEN_CHARACTERS:
            _reject(name, f"vocab[{number}].token_bytes", "is not a token in base64")
        yield token


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_IDS


def _reject(name: str, field: str, problem: str) -> Never:
    raise BadModelFile(f"{name}: {field} {problem}")
