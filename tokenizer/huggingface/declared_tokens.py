"""Tokens declared in the files beside a vocabulary."""

from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.huggingface.checks import MAX_IDS

__all__ = ["declared_tokens"]


def declared_tokens(
    config: Mapping[str, Any], ids: Mapping[str, Any]
) -> dict[int, Mapping[str, Any]]:
    """Return the entries of `ids` and of `added_tokens_decoder` in `config`, by id.

    `ids` is the parsed `added_tokens.json`. It does not mark control tokens, so all its tokens
    count as control tokens except runs of blanks (CodeGen). Raises `BadModelFile`.
    """
    entries: dict[int, Mapping[str, Any]] = {}
    for content, token_id in ids.items():
        if type(token_id) is not int or not 0 <= token_id < MAX_IDS:
            raise BadModelFile(f"added_tokens.json: {content[:40]!r} has no valid id")
        entries[token_id] = {"content": content, "special": bool(content.strip())}
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise BadModelFile("tokenizer_config.json: added_tokens_decoder is not an object")
    for key, entry in decoder.items():
        sound = key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < MAX_IDS
        if not sound or not isinstance(entry, dict):
            raise BadModelFile("tokenizer_config.json: added_tokens_decoder has an invalid entry")
        entries[int(key)] = entry
    return entries
