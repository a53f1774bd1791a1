"""`vocab.json` with `merges.txt`: byte-level BPE; the tokenizer class gives the split pattern."""

from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.core.pipeline import TokenizerPipeline
from swiftchat.tokenizer.huggingface.checks import flag
from swiftchat.tokenizer.huggingface.declared_tokens import DeclaredTokens
from swiftchat.tokenizer.huggingface.patterns import QWEN2
from swiftchat.tokenizer.huggingface.post_processor import with_configured_ends
from swiftchat.tokenizer.huggingface.tokenizer_json import tokenizer_json_pipeline

# By class of transformers: the pattern if it is not GPT-2's, and the normalizer.
_CLASSES: Mapping[str, tuple[str | None, str | None]] = {
    "GPT2Tokenizer": (None, None),
    "CodeGenTokenizer": (None, None),
    "GPTNeoXTokenizer": (None, "NFC"),
    "Qwen2Tokenizer": (QWEN2, "NFC"),
}
_END_OF_TEXT = "<|endoftext|>"
_DEFAULTS = {"bos_token": _END_OF_TEXT, "eos_token": _END_OF_TEXT, "unk_token": _END_OF_TEXT}


def class_defaults(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the named tokens of the class that `tokenizer_config.json` names."""
    name = _class_name(config)
    defaults = dict(_DEFAULTS)
    if name == "Qwen2Tokenizer":
        del defaults["bos_token"]
        defaults["pad_token"] = _END_OF_TEXT
    if name == "GPTNeoXTokenizer":
        defaults["pad_token"] = "<|padding|>"
    return defaults


def merges_pipeline(
    vocab: Any, merges: str, config: Mapping[str, Any], declared: DeclaredTokens
) -> TokenizerPipeline:
    """Build from the parsed `vocab.json` and the text of `merges.txt`.

    `config` is `tokenizer_config.json`, `declared` are the tokens of the files beside the
    vocabulary. Ids equal those of the class that `config` names, by default GPT2Tokenizer. Raises
    `BadModelFile` naming the wrong field or an unknown class.
    """
    name = _class_name(config)
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
        "normalizer": unicode_form and {"type": unicode_form},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": pairs},
    }
    try:
        pipeline = tokenizer_json_pipeline(spec, declared)
    except BadModelFile as error:
        problem = str(error).removeprefix("tokenizer.json: ")
        raise BadModelFile(f"vocab.json, merges.txt: {problem}") from None
    return with_configured_ends(pipeline, config, declared)


def _class_name(config: Mapping[str, Any]) -> str:
    return str(config.get("tokenizer_class") or "GPT2Tokenizer").removesuffix("Fast")
