"""What a GGUF file says about its model, in Hugging Face's words."""

import math
import re
from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf.architectures import GgufArchitecture, gguf_architecture
from swiftchat.weights.gguf.rope import rope_fields
from swiftchat.weights.gguf.settings import Said
from swiftchat.weights.gguf.tokenizer import adds_bos, token_at, tokenizer_class

__all__ = [
    "generation_config_json",
    "model_card",
    "model_config_json",
    "tokenizer_config_json",
]

_EMBED, _OUTPUT = "token_embd.weight", "output.weight"
_END_TOKENS = ("eos", "eot", "eom")


def model_config_json(file: GgufFile, dtype: str) -> dict[str, Any]:
    """The `config.json` of the model in `file`, with its weights saved as `dtype`.

    Raises `BadModelFile` for an architecture or rope scaling this program does not know, and
    for numbers that cannot be.
    """
    arch, said = gguf_architecture(file)
    usual = {
        "vocab_size": _vocab_size(file),
        "hidden_size": said.get("embedding_length"),
        "intermediate_size": said.get("feed_forward_length"),
        "num_hidden_layers": said.get("block_count"),
        "num_attention_heads": said.get("attention.head_count"),
        "num_key_value_heads": said.get(
            "attention.head_count_kv", said.get("attention.head_count")
        ),
        "head_dim": said.head_dim,
        "max_position_embeddings": said.get("context_length"),
        "rms_norm_eps": said.get(
            "attention.layer_norm_rms_epsilon", said.get("attention.layer_norm_epsilon")
        ),
        "hidden_act": arch.family.in_usual_words({}).get("hidden_act", "silu"),
        "rope_theta": said.get("rope.freq_base", 10_000.0),
        # Zero says that there is none.
        "sliding_window": said.get("attention.sliding_window") or None,
        "tie_word_embeddings": _OUTPUT not in file.tensors,
        "torch_dtype": dtype,
    }
    share = _rotated_share(arch, said)
    if share is not None:
        usual["partial_rotary_factor"] = share
    config = {
        "architectures": [arch.architecture],
        "model_type": arch.family.model_type,
        **{arch.spelled(name): usual[name] for name in usual if name not in arch.without},
        **{name: value for name, value in arch.settings(said).items() if value is not None},
        **_token_ids(file.metadata),
    }
    config |= rope_fields(said, config, _checked(file, config))
    _checked(file, config)
    return config


def _rotated_share(arch: GgufArchitecture, said: Said) -> float | None:
    """How much of a head is rotated; None where it is all and the family would think so."""
    head_dim, rotated = said.head_dim, said.get("rope.dimension_count", said.head_dim)
    if said.get("attention.value_length", head_dim) != head_dim:
        raise BadModelFile(
            f"{said.file.path}: {said.arch}.attention.value_length differs from the head size "
            f"{head_dim}"
        )
    usual = arch.family.in_usual_words({}).get("partial_rotary_factor", 1.0)
    if not isinstance(rotated, int) or not isinstance(head_dim, int) or head_dim < 1:
        return None
    share = rotated / head_dim
    # Who reads it takes the integer part of the product.
    share = share if int(share * head_dim) == rotated else math.nextafter(share, math.inf)
    return None if share == usual else share


def tokenizer_config_json(file: GgufFile) -> dict[str, Any]:
    """The `tokenizer_config.json`: special tokens by name, and the chat template."""
    metadata = file.metadata
    config: dict[str, Any] = {
        "tokenizer_class": tokenizer_class(metadata),
        "clean_up_tokenization_spaces": False,
        "add_bos_token": adds_bos(metadata),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = token_at(metadata, f"tokenizer.ggml.{key}_token_id")
        if token is not None:
            config[f"{name}_token"] = token
    template = _chat_template(metadata)
    if template is not None:
        config["chat_template"] = template
    return config


def _chat_template(metadata: Mapping[str, Any]) -> str | list[dict[str, str]] | None:
    """The template, or where there are several each with its name."""
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
    """The `generation_config.json`: which tokens begin and end; every end token is listed."""
    config = _token_ids(file.metadata)
    ends = []
    for name in _END_TOKENS:
        token_id = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token_id is not None and token_id not in ends:
            ends.append(token_id)
    if ends:
        config["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    return config


def model_card(file: GgufFile) -> str | None:
    """A README.md with the license in its front matter, or None where the file names none."""
    license_name = file.metadata.get("general.license")
    if not isinstance(license_name, str) or not re.fullmatch(r"[\w.+-]{1,64}", license_name):
        return None
    return f"---\nlicense: {license_name}\n---\n\nConverted from a GGUF file by swiftchat.\n"


def _checked(file: GgufFile, config: Mapping[str, Any]) -> ModelConfig:
    try:
        return ModelConfig.from_hf(config)
    except BadModelFile as error:
        raise BadModelFile(
            f"{file.path}: the metadata describes no model: {error.message}", error.hint
        ) from error


def _vocab_size(file: GgufFile) -> int | None:
    embed = file.tensors.get(_EMBED)
    return embed.shape[0] if embed is not None else None


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    ids = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            ids[f"{name}_token_id"] = token_id
    return ids
