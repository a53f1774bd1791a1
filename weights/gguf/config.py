"""The metadata of a GGUF file as the JSON files and the model card of a Hugging Face model."""

import re
from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.parts.fields import invalid
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf.architectures import gguf_architecture
from swiftchat.weights.gguf.end_tokens import end_token_ids, special_id
from swiftchat.weights.gguf.metadata import Metadata, is_size
from swiftchat.weights.gguf.rope import rope_fields
from swiftchat.weights.gguf.tokenizer import (
    adds_bos,
    adds_eos,
    declared_tokens,
    token_at,
    tokenizer_class,
    typed_tokens,
)

_EMBED, _OUTPUT = "token_embd.weight", "output.weight"
# Fields whose absence from the metadata means null, not the default.
_NULL_FIELDS = frozenset({"q_lora_rank"})


def model_config_json(file: GgufFile, dtype: str) -> dict[str, Any]:
    """Return the `config.json` of the model in `file`, with weights saved as `dtype`.

    Raises `BadModelFile` for an unknown architecture or rope scaling, and for invalid metadata.
    """
    architecture, metadata = gguf_architecture(file)
    target_defaults = architecture.target.standard_fields({})
    standard = {
        "vocab_size": _vocab_size(file),
        "hidden_size": metadata.get("embedding_length"),
        "intermediate_size": _largest(metadata.get("feed_forward_length")),
        "num_hidden_layers": _num_layers(metadata),
        "num_attention_heads": metadata.get("attention.head_count"),
        "num_key_value_heads": _largest(
            metadata.get("attention.head_count_kv", metadata.get("attention.head_count"))
        ),
        "head_dim": metadata.head_dim,
        "max_position_embeddings": metadata.get("context_length"),
        "rms_norm_eps": metadata.get(
            "attention.layer_norm_rms_epsilon", metadata.get("attention.layer_norm_epsilon")
        ),
        "hidden_act": target_defaults.get("hidden_act", "silu"),
        "rope_theta": metadata.get("rope.freq_base", 10_000.0),
        # Zero means no window.
        "sliding_window": metadata.get("attention.sliding_window") or None,
        "tie_word_embeddings": _OUTPUT not in file.tensors,
        "torch_dtype": dtype,
    }
    factor = None
    if "partial_rotary_factor" not in architecture.absent_keys:
        factor = _partial_rotary_factor(metadata)
    if factor is not None and factor != target_defaults.get("partial_rotary_factor", 1.0):
        standard["partial_rotary_factor"] = factor
    own = architecture.config_fields(metadata)
    config = {
        "architectures": [architecture.class_name],
        "model_type": architecture.target.model_type,
        **{
            architecture.config_key(name): value
            for name, value in standard.items()
            if name not in architecture.absent_keys
        },
        **{name: v for name, v in own.items() if v is not None or name in _NULL_FIELDS},
        **_token_ids(file.metadata),
    }
    config |= rope_fields(metadata, config, _checked(file, config))
    _checked(file, config)
    return config


def _largest(sizes: Any) -> Any:
    """Return the size of the layers that have it, given one or a list with 0 for the others."""
    listed = isinstance(sizes, list) and all(type(each) is int for each in sizes)
    used = {*sizes} - {0} if listed else set()
    return used.pop() if len(used) == 1 else sizes


def _num_layers(metadata: Metadata) -> Any:
    count = metadata.get("block_count")
    return count - metadata.num_nextn_layers if is_size(count) else count


def _partial_rotary_factor(metadata: Metadata) -> float | None:
    """Return the rotated fraction of a head whose values are as large as its keys."""
    head_dim = metadata.head_dim
    if metadata.get("attention.value_length", head_dim) != head_dim:
        raise BadModelFile(
            f"{metadata.file.path}: {metadata.name}.attention.value_length differs from the "
            f"head size {head_dim}"
        )
    return metadata.rotated_share()


def tokenizer_config_json(file: GgufFile) -> dict[str, Any]:
    """Return the `tokenizer_config.json`: special tokens by name, and the chat template."""
    metadata = file.metadata
    config: dict[str, Any] = {
        "tokenizer_class": tokenizer_class(metadata),
        "clean_up_tokenization_spaces": False,
        "add_bos_token": adds_bos(metadata),
        **({"add_eos_token": True} if adds_eos(metadata) else {}),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = token_at(metadata, key)
        if token is not None:
            config[f"{name}_token"] = token
    if declared := declared_tokens(metadata):
        config["added_tokens_decoder"] = declared
    template = _chat_template(metadata)
    if template is not None:
        config["chat_template"] = template
    return config


def _chat_template(metadata: Mapping[str, Any]) -> str | list[dict[str, str]] | None:
    """Return the template, or a list of templates with names; None if there is none."""
    key = "tokenizer.chat_template"
    found = {
        name.removeprefix(key).removeprefix(".") or "default": source
        for name, source in metadata.items()
        if isinstance(source, str) and (name == key or name.startswith(f"{key}."))
    }
    if list(found) in ([], ["default"]):
        return found.get("default")
    return [{"name": name, "template": source} for name, source in found.items()]


def generation_config_json(file: GgufFile) -> dict[str, Any]:
    """Return the `generation_config.json`: the BOS token and all end tokens."""
    config = _token_ids(file.metadata)
    ends = end_token_ids(file.metadata, *typed_tokens(file.metadata))
    if ends:
        config["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    return config


def model_card(file: GgufFile) -> str | None:
    """Return a README.md with the license in its front matter; None if the file names none."""
    license_name = file.metadata.get("general.license")
    if not isinstance(license_name, str) or not re.fullmatch(r"[\w.+-]{1,64}", license_name):
        return None
    return f"---\nlicense: {license_name}\n---\n\nConverted from a GGUF file by swiftchat.\n"


def _checked(file: GgufFile, config: Mapping[str, Any]) -> ModelConfig:
    try:
        made = read_model_config(config)
        # What the class ignores was part of the model that became this file.
        for name in made.ignored_keys:
            if name != "sliding_window":
                raise invalid(name, f"absent for {made.architecture}", config.get(name))
        return made
    except BadModelFile as error:
        raise BadModelFile(
            f"{file.path}: the metadata does not describe a valid model: {error.message}",
            error.hint,
        ) from error


def _vocab_size(file: GgufFile) -> int | None:
    embed = file.tensors.get(_EMBED)
    return embed.shape[0] if embed is not None else None


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    ids, num_tokens = {}, len(tokens) if isinstance(tokens, list) else 0
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        if (token_id := special_id(metadata, key, num_tokens)) is not None:
            ids[f"{name}_token_id"] = token_id
    return ids
