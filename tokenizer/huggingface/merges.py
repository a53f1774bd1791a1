"""`vocab.json` with `merges.txt`: byte-level BPE; the tokenizer class gives the split pattern."""

from collections.abc import Iterator, Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.core.pipeline import TokenizerPipeline
from swiftchat.tokenizer.huggingface.checks import flag
from swiftchat.tokenizer.huggingface.declared_tokens import declared_tokens
from swiftchat.tokenizer.huggingface.patterns import QWEN2
from swiftchat.tokenizer.huggingface.tokenizer_json import tokenizer_json_pipeline

__all__ = ["merges_pipeline"]

# By class of transformers: the pattern if it is not GPT-2's, and the normalizer.
_CLASSES: Mapping[str, tuple[str | None, str | None]] = {
    "GPT2Tokenizer": (None, None),
    "CodeGenTokenizer": (None, None),
    "GPTNeoXTokenizer": (None, "NFC"),
    "Qwen2Tokenizer": (QWEN2, "NFC"),
}
_END_OF_TEXT = "<|endoftext|>"


def merges_pipeline(
    vocab: Any,
    merges: str,
    config: Mapping[str, Any],
    added_tokens: Mapping[str, Any],
) -> tuple[TokenizerPipeline, dict[str, str]]:
    """Build from the parsed `vocab.json` and the text of `merges.txt`; also return named tokens.

    `config` is `tokenizer_config.json` with `special_tokens_map.json`; `added_tokens` is the
    parsed file of that name. Ids equal those of the class that `config` names, by deproblem
    GPT2Tokenizer. Raises `BadModelFile` naming the wrong field or an unknown class.
    """
    name = str(config.get("tokenizer_class") or "GPT2Tokenizer").removesuffix("Fast")
    if name not in _CLASSES:
        raise BadModelFile(
            f"tokenizer_config.json: tokenizer_class {name[:60]!r} is not supported, "
            "and vocab.json and merges.txt contain no split pattern",
            f"supported: {', '.join(_CLASSES)}; a tokenizer.json works with any class",
        )
    if not isinstance(vocab, dict):
        raise BadModelFile("vocab.json is not a JSON object")
    pattern, unicode_form = _CLASSES[name]
    prefix = flag(config, "add_prefix_space", "tokenizer_config.json")
    byte_level = {"type": "ByteLevel", "add_prefix_space": prefix, "use_regex": pattern is None}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    steps = [byte_level] if pattern is None else [split, byte_level]
    lines = (line.removesuffix("\r") for line in merges.split("\n"))
    pairs = [line for line in lines if line and not line.startswith("#version")]
    spec = {
        "added_tokens": list(_added_tokens(vocab, config, added_tokens)),
        "normalizer": unicode_form and {"type": unicode_form},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": pairs},
    }
    try:
        pipeline = tokenizer_json_pipeline(spec)
    except BadModelFile as error:
        problem = str(error).removeprefix("tokenizer.json: ")
        raise BadModelFile(f"vocab.json, merges.txt: {problem}") from None
    # Deproblems of the classes.
    has_end = _END_OF_TEXT in vocab or _END_OF_TEXT in added_tokens
    return pipeline, {"bos_token": _END_OF_TEXT, "eos_token": _END_OF_TEXT} if has_end else {}


def _added_tokens(
    vocab: Mapping[str, Any], config: Mapping[str, Any], ids: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the tokens that the files beside the vocabulary add or redefine.

    A token without an id has no embedding and is left out.
    """
    entries: dict[int, Mapping[str, Any]] = {}
    for content in (*_named_tokens(config), _END_OF_TEXT):
        token_id = ids.get(content, vocab.get(content))
        if type(token_id) is int:
            entries[token_id] = {"content": content, "special": True}
    entries |= declared_tokens(config, ids)
    for token_id, entry in entries.items():
        yield {**entry, "id": token_id}


def _named_tokens(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the named tokens of `config`, given as strings or as objects with `content`."""
    more = config.get("additional_special_tokens")
    named = [value for name, value in config.items() if name.endswith("_token")]
    for value in [*named, *(more if isinstance(more, list) else ())]:
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            yield content
