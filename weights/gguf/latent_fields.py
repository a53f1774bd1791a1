"""Fields of config.json of models with latent attention, as `model_fields` for the others.

Source: llama.cpp's converter and loader.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.gguf.expert_fields import experts
from swiftchat.weights.gguf.metadata import Metadata, is_size

# The values of `expert_gating_func`: 1 is a softmax.
_SIGMOID = 2


def has_sigmoid_router(metadata: Metadata) -> bool:
    """Return whether experts have sigmoid scores; older files do not say it for a softmax."""
    function = metadata.get("expert_gating_func")
    if function is None:
        return any(name.endswith(".exp_probs_b.bias") for name in metadata.file.tensors)
    return bool(function == _SIGMOID)


def _latent(metadata: Metadata) -> dict[str, Any]:
    """Return the sizes of latent attention; older files have no keys of their own for a head."""
    key = metadata.get("attention.key_length_mla", metadata.get("attention.key_length"))
    value = metadata.get("attention.value_length_mla", metadata.get("attention.value_length"))
    rotated = metadata.require("rope.dimension_count")
    sizes = is_size(key) and is_size(rotated)
    return {
        "num_key_value_heads": metadata.get("attention.head_count"),
        "q_lora_rank": metadata.get("attention.q_lora_rank"),
        "kv_lora_rank": metadata.require("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated if sizes else None,
        "v_head_dim": value,
        "attention_bias": metadata.has_tensor("attn_kv_a_mqa.bias"),
    }


def _experts_of_deepseek(metadata: Metadata) -> dict[str, Any]:
    return {
        **experts(metadata, "n_routed_experts"),
        "n_shared_experts": metadata.get("expert_shared_count"),
        "first_k_dense_replace": metadata.get("leading_dense_block_count", 0),
        "routed_scaling_factor": metadata.get("expert_weights_scale", 1.0),
        "n_group": metadata.get("expert_group_count", 1),
        "topk_group": metadata.get("expert_group_used_count", 1),
    }


def deepseek_v2(metadata: Metadata) -> Mapping[str, Any]:
    if metadata.get("expert_weights_norm"):
        raise BadModelFile(
            f"{metadata.file.path}: deepseek2.expert_weights_norm with a softmax router is not "
            "supported"
        )
    groups = metadata.get("expert_group_count", 1)
    method = "greedy" if groups == 1 else "group_limited_greedy"
    return {**_latent(metadata), **_experts_of_deepseek(metadata), "topk_method": method}


def deepseek_v3(metadata: Metadata) -> Mapping[str, Any]:
    normalized = bool(metadata.get("expert_weights_norm", False))
    fields = {**_latent(metadata), **_experts_of_deepseek(metadata)}
    return {**fields, "norm_topk_prob": normalized, "rope_interleave": True}


def youtu(metadata: Metadata) -> Mapping[str, Any]:
    return {**_latent(metadata), "rope_interleave": True}


def minicpm3(metadata: Metadata) -> Mapping[str, Any]:
    # llama.cpp has these numbers in its code.
    return {**_latent(metadata), "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
