"""What a GGUF file says about its model, in Hugging Face's words: configs, names, row order."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile
from swiftchat.weights.config import ModelConfig
from swiftchat.weights.dequantize import dequantize
from swiftchat.weights.families import (
    Family,
    canonical_tensors,
    expected_tensors,
    family_of_gguf,
)
from swiftchat.weights.gguf import GgufFile, GgufTensor
from swiftchat.weights.gguf_tokenizer import adds_bos, token_at, tokenizer_class

__all__ = [
    "generation_config_json", "model_card", "model_config_json", "tensor_sources",
    "tokenizer_config_json", "values",
]  # fmt: skip

_ROPE_FACTORS = "rope_freqs.weight"
_LONGROPE_FACTORS = "rope_factors_long.weight"
_CHUNK_ELEMENTS = 1 << 20
_END_TOKENS = ("eos", "eot", "eom")

# What published Llama 3 models use; tried first, because it fits them exactly.
_LLAMA3_ROPE = (1.0, 4.0, 8192)


def model_config_json(file: GgufFile, dtype: str) -> dict[str, Any]:
    """The `config.json` of the model in `file`, with its weights saved as `dtype`.

    Raises `BadModelFile` for an architecture, rope scaling or mixture of experts this program
    does not know, and for numbers that cannot be.
    """
    metadata = file.metadata
    architecture, family = family_of_gguf(str(metadata.get("general.architecture")))
    prefix = family.gguf_arch

    def get(key: str, default: object = None) -> Any:
        return metadata.get(f"{prefix}.{key}", default)

    if get("expert_count"):
        raise BadModelFile(f"{file.path}: mixtures of experts are not supported yet")
    head_dim = get("attention.key_length", get("rope.dimension_count"))
    for key in ("attention.value_length", "rope.dimension_count"):
        if get(key, head_dim) != head_dim:
            raise BadModelFile(f"{file.path}: {prefix}.{key} differs from the head size {head_dim}")
    config = {
        "architectures": [architecture],
        "model_type": family.model_type,
        "vocab_size": _vocab_size(file, family),
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv", get("attention.head_count")),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": _shortest(get("attention.layer_norm_rms_epsilon")),
        "hidden_act": "silu",
        "rope_theta": _shortest(get("rope.freq_base", 10_000.0)),
        "sliding_window": get("attention.sliding_window"),
        "attention_bias": family.gguf_tensors["q_bias"].format(i=0) in file.tensors,
        "mlp_bias": family.gguf_tensors["up_bias"].format(i=0) in file.tensors,
        "tie_word_embeddings": family.gguf_tensors["lm_head"] not in file.tensors,
        "torch_dtype": dtype,
        **_token_ids(metadata),
    }
    if head_dim is not None:
        config["head_dim"] = head_dim
    checked = _checked(file, config)
    config["rope_scaling"] = _rope_scaling(file, checked)
    _checked(file, config)
    return config


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


def tensor_sources(file: GgufFile, config: ModelConfig) -> dict[str, tuple[GgufTensor, int]]:
    """For every expected Hugging Face name: the GGUF tensor and how many heads to reorder.

    0 heads: the rows are as they should be. Raises `BadModelFile` for a missing or misshapen
    tensor, naming expected and found.
    """
    _, family = family_of_gguf(str(file.metadata.get("general.architecture")))
    shapes = expected_tensors(config)
    sources = {}
    for canonical, layer, _ in canonical_tensors(config):
        name = family.tensors[canonical].format(i=layer)
        gguf_name = family.gguf_tensors[canonical].format(i=layer)
        tensor = file.tensors.get(gguf_name)
        found = "nothing" if tensor is None else str(list(tensor.shape))
        if tensor is None or tensor.shape != shapes[name]:
            raise BadModelFile(
                f"{file.path}: tensor {gguf_name}: expected {list(shapes[name])}, found {found}"
            )
        heads = config.num_heads if canonical.startswith("q") else config.num_kv_heads
        sources[name] = (tensor, heads if canonical in family.permuted else 0)
    return sources


def values(file: GgufFile, tensor: GgufTensor, heads: int) -> Iterator[npt.NDArray[np.float32]]:
    """The tensor's numbers in Hugging Face's row order, a run of about 2^20 at a time, flat.

    GGUF stores the two halves of each head interleaved: row 2j + h there is row
    h·(head_dim / 2) + j here.
    """
    rows = file.rows(tensor)
    if len(tensor.shape) == 1:
        flat = dequantize(rows, tensor.type_name).reshape(-1)
        yield _halves_apart(flat, heads) if heads else flat
        return
    if heads:
        # Blocks never cross rows, so the rows can change places before they are decoded.
        rows = _halves_apart(rows, heads)
    step = max(1, _CHUNK_ELEMENTS // tensor.shape[-1])
    for start in range(0, len(rows), step):
        yield dequantize(rows[start : start + step], tensor.type_name).reshape(-1)


def _halves_apart(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    split = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def _checked(file: GgufFile, config: Mapping[str, Any]) -> ModelConfig:
    try:
        return ModelConfig.from_hf(config)
    except BadModelFile as error:
        raise BadModelFile(
            f"{file.path}: the metadata describes no model: {error.message}", error.hint
        ) from error


def _vocab_size(file: GgufFile, family: Family) -> int | None:
    embed = file.tensors.get(family.gguf_tensors["embed"])
    return embed.shape[0] if embed is not None else None


def _shortest(number: Any) -> Any:
    """The shortest decimal of a float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(number))) if isinstance(number, float) else number


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    ids = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            ids[f"{name}_token_id"] = token_id
    return ids


def _rope_scaling(file: GgufFile, config: ModelConfig) -> dict[str, Any] | None:
    prefix = f"{file.metadata['general.architecture']}.rope.scaling"
    kind = file.metadata.get(f"{prefix}.type", "none")
    if _LONGROPE_FACTORS in file.tensors:
        kind = "longrope"
    if _ROPE_FACTORS in file.tensors:
        return _llama3_scaling(file, config, file.metadata.get(f"{prefix}.original_context_length"))
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": file.metadata.get(f"{prefix}.factor")}
    raise BadModelFile(f"{file.path}: rope scaling {str(kind)[:40]!r} is not supported yet")


def _llama3_scaling(file: GgufFile, config: ModelConfig, original: Any) -> dict[str, Any] | None:
    """The parameters of Llama 3's rope scaling out of the divisors it leads to.

    A divisor f of the wave length w satisfies 1/f = (1 − s)/F + s with s between 0 and 1 and
    s = (C/w − low)/(high − low), so two divisors strictly between 1 and F give all of them.
    """
    tensor = file.tensors[_ROPE_FACTORS]
    found = np.concatenate(list(values(file, tensor, 0))).astype(np.float64)
    if found.shape != (config.head_dim // 2,) or not np.all((found >= 1) & (found < 1e6)):
        raise BadModelFile(f"{file.path}: {_ROPE_FACTORS} holds no divisors of frequencies")
    factor = float(found.max())
    if factor == 1.0:
        return None
    exponents = np.arange(0, config.head_dim, 2) / config.head_dim
    assert config.rope is not None  # as in every family GGUF files are read of
    waves = 2 * math.pi * config.rope.theta**exponents
    for low, high, context in (_LLAMA3_ROPE, _fitted(found, waves, factor, original)):
        if np.allclose(_llama3_divisors(waves, factor, low, high, context), found, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": _shortest(factor),
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": context,
            }
    raise BadModelFile(f"{file.path}: {_ROPE_FACTORS} follows no known rope scaling")


def _llama3_divisors(
    waves: npt.NDArray[np.float64], factor: float, low: float, high: float, context: float
) -> npt.NDArray[np.float64]:
    share = np.clip((context / waves - low) / (high - low), 0.0, 1.0)
    divisors: npt.NDArray[np.float64] = 1 / ((1 - share) / factor + share)
    return divisors


def _fitted(
    found: npt.NDArray[np.float64], waves: npt.NDArray[np.float64], factor: float, original: Any
) -> tuple[float, float, int]:
    between = (found > 1) & (found < factor)
    if between.sum() < 2:
        return _LLAMA3_ROPE
    share = (1 / found[between] - 1 / factor) / (1 - 1 / factor)
    slope, start = np.polyfit(1 / waves[between], share, 1)
    # Only context / (high − low) and low / (high − low) are determined; the context is free.
    context = original if isinstance(original, int) and original > 0 else 8192
    if not slope > 0 or not start < 0:
        return _LLAMA3_ROPE
    width = context / slope
    low = -start * width
    return round(float(low), 4), round(float(low + width), 4), context
