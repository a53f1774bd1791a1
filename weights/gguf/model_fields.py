"""Fields of config.json that GGUF metadata give, one function for each architecture.

Source: llama.cpp's converter and loader.
"""

import math
from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.parts.fields import MAX_LAYERS
from swiftchat.weights.gguf.metadata import Metadata, is_size
from swiftchat.weights.gguf.rope import ROPE_TENSORS

_ALIBI = 8.0  # of all supported architectures with linear biases


def no_fields(metadata: Metadata) -> Mapping[str, Any]:
    return {}


def attention_bias(metadata: Metadata) -> bool:
    return metadata.has_tensor("attn_q.bias", "attn_qkv.bias")


def llama(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "attention_bias": attention_bias(metadata),
        "mlp_bias": metadata.has_tensor("ffn_up.bias"),
    }


def layer_types(
    metadata: Metadata, usual: int | None = None, *, full_first: bool = False
) -> list[str] | None:
    """Return the type of each layer; None if the file leaves it to the architecture.

    The pattern is either n (every nth layer has full attention, with `full_first` the first of n)
    or a flag per layer (windowed). Files without one have the pattern `usual`.
    """
    pattern = metadata.get("attention.sliding_window_pattern", usual)
    count, num_layers = metadata.get("block_count"), metadata.num_layers
    if pattern is None or num_layers < 1 or count > MAX_LAYERS:
        return None
    if type(pattern) is int and pattern >= 0:
        first = 0 if full_first else 1
        pattern = [pattern == 0 or (i + first) % pattern != 0 for i in range(count)]
    # Some files have no flags for the layers that predict further tokens.
    if not isinstance(pattern, list) or len(pattern) not in (count, num_layers):
        raise BadModelFile(
            f"{metadata.file.path}: {metadata.name}.attention.sliding_window_pattern must be "
            f"a number or a list of {count} flags"
        )
    kinds = ["sliding_attention" if windowed else "full_attention" for windowed in pattern]
    return kinds[:num_layers]


def stablelm(metadata: Metadata) -> Mapping[str, Any]:
    # Older files lack the key; llama.cpp also decides by the norm.
    return {
        "use_qkv_bias": attention_bias(metadata),
        "use_parallel_residual": not metadata.has_tensor("ffn_norm.weight"),
    }


def glm(metadata: Metadata) -> Mapping[str, Any]:
    return {"attention_bias": attention_bias(metadata)}


def gptneox(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "attention_bias": attention_bias(metadata),
        "use_parallel_residual": metadata.get("use_parallel_residual", True),
    }


def starcoder2(metadata: Metadata) -> Mapping[str, Any]:
    return {"use_bias": attention_bias(metadata)}


def falcon(metadata: Metadata) -> Mapping[str, Any]:
    heads, kv_heads = metadata.get("attention.head_count"), metadata.get("attention.head_count_kv")
    two_norms = metadata.has_tensor("attn_norm_2.weight")
    return {
        "new_decoder_architecture": two_norms or kv_heads not in (1, heads, None),
        "num_ln_in_parallel_attn": 2 if two_norms else 1,
        "multi_query": kv_heads == 1,
        "num_kv_heads": kv_heads,
        "parallel_attn": True,
        "bias": attention_bias(metadata),
    }


def granite(metadata: Metadata) -> Mapping[str, Any]:
    return {
        **llama(metadata),
        "attention_multiplier": metadata.get("attention.scale"),
        "embedding_multiplier": metadata.get("embedding_scale"),
        "residual_multiplier": metadata.get("residual_scale"),
        "logits_scaling": metadata.get("logit_scale"),
    }


def granite_swa(metadata: Metadata) -> Mapping[str, Any]:
    return {**granite(metadata), **windows_and_rotated_layers(metadata)}


def windows_and_rotated_layers(metadata: Metadata) -> dict[str, Any]:
    """Return the types of the layers, and the base of the rotation of each if not all rotate."""
    pattern, base = metadata.get("attention.rope_pattern"), metadata.get("rope.freq_base", 10_000.0)
    fields: dict[str, Any] = {"layer_types": layer_types(metadata)}
    if pattern is None:
        return fields
    if not isinstance(pattern, list):
        raise BadModelFile(
            f"{metadata.file.path}: {metadata.name}.attention.rope_pattern must be a list of flags"
        )
    return {**fields, "layer_rope_theta": [base if rotates else 0 for rotates in pattern]}


def bitnet(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "attention_bias": attention_bias(metadata),
        # llama.cpp's default; the class has another.
        "hidden_act": metadata.get("hidden_activation", "silu"),
    }


def minicpm(metadata: Metadata) -> Mapping[str, Any]:
    """Return Granite's fields; attention is scaled as usual."""
    for key in ("embedding_scale", "residual_scale", "logit_scale"):
        metadata.require(key)
    head_dim = metadata.head_dim
    return {
        **granite(metadata),
        "attention_multiplier": head_dim**-0.5 if is_size(head_dim) else None,
    }


def apertus(metadata: Metadata) -> Mapping[str, Any]:
    for key, usual in (("xielu.beta", 0.5), ("xielu.eps", -1e-6)):
        found = metadata.get(key)
        if not isinstance(found, list) or any(
            not isinstance(each, float) or not math.isclose(each, usual, rel_tol=5e-2)
            for each in found
        ):
            raise BadModelFile(f"{metadata.file.path}: apertus.{key} must be {usual} in each layer")
    fields = {"attention_bias": attention_bias(metadata), "hidden_act": "xielu"}
    if not ROPE_TENSORS.isdisjoint(metadata.file.tensors):
        return fields
    # Without fields of the rotation its class would stretch it.
    plain = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base", 10_000.0)}
    return {**fields, "rope_parameters": plain}


def command_r(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "logit_scale": metadata.get("logit_scale"),
        "use_qk_norm": metadata.has_tensor("attn_q_norm.weight"),
    }


def cohere2(metadata: Metadata) -> Mapping[str, Any]:
    return {"logit_scale": metadata.get("logit_scale"), "layer_types": layer_types(metadata)}


def windows(metadata: Metadata) -> Mapping[str, Any]:
    return {"attention_bias": attention_bias(metadata), "layer_types": layer_types(metadata)}


def olmo(metadata: Metadata) -> Mapping[str, Any]:
    return {"clip_qkv": metadata.get("attention.clamp_kqv")}


def seed_oss(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "attention_bias": attention_bias(metadata),
        "attention_out_bias": metadata.has_tensor("attn_output.bias"),
    }


def mpt(metadata: Metadata) -> Mapping[str, Any]:
    if metadata.get("attention.max_alibi_bias", 0.0) != _ALIBI:
        raise BadModelFile(
            f"{metadata.file.path}: mpt.attention.max_alibi_bias must be {_ALIBI:g}: MPT with "
            "learned positions or other biases is not supported"
        )
    return {"attn_config": {"alibi": True, "clip_qkv": metadata.get("attention.clamp_kqv")}}
