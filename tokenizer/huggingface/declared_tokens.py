"""What the files beside a vocabulary say about tokens added to it."""

from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.huggingface.checks import MOST_IDS

__all__ = ["declared_tokens"]


def declared_tokens(
    config: Mapping[str, Any], ids: Mapping[str, Any]
) -> dict[int, Mapping[str, Any]]:
    """The entries of `added_tokens_decoder` in `config`, then those of `ids`, by their ids.

    `ids` is the parsed `added_tokens.json`. It does not tell control tokens from others; so all
    are taken for control tokens but runs of blanks (CodeGen's). Raises `BadModelFile`.
    """
    entries: dict[int, Mapping[str, Any]] = {}
    for content, token_id in ids.items():
        if type(token_id) is not int or not 0 <= token_id < MOST_IDS:
            raise BadModelFile(f"added_tokens.json: {content[:40]!r} has no id from 0 on")
        entries[token_id] = {"content": content, "special": bool(content.strip())}
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise BadModelFile("tokenizer_config.json: added_tokens_decoder is no object")
    for key, entry in decoder.items():
        sound = key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < MOST_IDS
        if not sound or not isinstance(entry, dict):
            raise BadModelFile("tokenizer_config.json: added_tokens_decoder has a wrong entry")
        entries[int(key)] = entry
    return entries
