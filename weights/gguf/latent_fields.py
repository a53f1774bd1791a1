"""Fields of config.json of models with latent attention, as `model_fields` for the others.

Source: llama.cpp's converter and loader.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.gguf.expert_fields import SIGMOID, experts
from swiftchat.weights.gguf.metadata import Metadata, is_size


def has_sigmoid_router(metadata: Metadata) -> bool:
    """Return whether experts have sigmoid scores; older files do not say it for a softmax."""
    function = metadata.get("expert_gating_func")
    if function is None:
        return any(name.endswith(".exp_probs_b.bias") for name in metadata.file.tensors)
    return bool(function == SIGMOID)


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
        "attention_bias": any(metadata.layers_with("attn_kv_a_mqa.bias")),
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


def mistral4(metadata: Metadata) -> Mapping[str, Any]:
    return deepseek_v3(metadata)


def sparse_latent(metadata: Metadata) -> Mapping[str, Any]:
    return {
        **deepseek_v3(metadata),
        "index_n_heads": metadata.require("attention.indexer.head_count"),
        "index_head_dim": metadata.require("attention.indexer.key_length"),
        "index_topk": metadata.require("attention.indexer.top_k"),
    }


def _key_heads(metadata: Metadata) -> list[Any]:
    """Return the key heads of each layer; those without any have Kimi Delta Attention."""
    heads = metadata.require("attention.head_count_kv")
    if not isinstance(heads, list):
        raise BadModelFile(
            f"{metadata.file.path}: {metadata.name}.attention.head_count_kv must be a list"
        )
    return heads[: metadata.num_layers]


def _experts_of_kimi(metadata: Metadata, *, normalized: bool) -> dict[str, Any]:
    """Return the fields of the experts; `normalized` is for files that do not say it."""
    return {
        "num_experts": metadata.require("expert_count"),
        "num_experts_per_token": metadata.require("expert_used_count"),
        "moe_intermediate_size": metadata.require("expert_feed_forward_length"),
        "num_shared_experts": metadata.get("expert_shared_count"),
        "first_k_dense_replace": metadata.get("leading_dense_block_count", 0),
        "routed_scaling_factor": metadata.get("expert_weights_scale", 1.0),
        "num_expert_group": metadata.get("expert_group_count", 1),
        "topk_group": metadata.get("expert_group_used_count", 1),
        "moe_renormalize": metadata.get("expert_weights_norm", normalized),
    }


def kimi_linear(metadata: Metadata) -> Mapping[str, Any]:
    """Return the fields of Kimi Linear, whose config.json counts layers from 1."""
    heads, tensors = _key_heads(metadata), metadata.file.tensors
    betas = [tensors.get(f"blk.{i}.ssm_beta.weight") for i, count in enumerate(heads) if not count]
    return {
        **_latent(metadata),
        "linear_attn_config": {
            "full_attn_layers": [i + 1 for i, count in enumerate(heads) if count],
            "kda_layers": [i + 1 for i, count in enumerate(heads) if not count],
            "num_heads": next((each.shape[0] for each in betas if each is not None), None),
            "head_dim": metadata.require("kda.head_dim"),
            "short_conv_kernel_size": metadata.require("ssm.conv_kernel"),
        },
        # llama.cpp always normalizes; its converter writes no key.
        **_experts_of_kimi(metadata, normalized=True),
    }


def bailing_hybrid(metadata: Metadata) -> Mapping[str, Any]:
    """Return the fields of Ling 3.0. Raises `BadModelFile` if it clamps the MLPs of experts."""
    for key in ("swiglu_clamp_exp", "swiglu_clamp_shexp"):
        limits = metadata.get(key)
        if any(limits) if isinstance(limits, list) else limits:
            raise BadModelFile(
                f"{metadata.file.path}: {metadata.name}.{key}: experts with limits are not "
                "supported"
            )
    if not has_sigmoid_router(metadata):
        raise BadModelFile(
            f"{metadata.file.path}: {metadata.name}.expert_gating_func must be {SIGMOID}"
        )
    return {
        **_latent(metadata),
        **_experts_of_kimi(metadata, normalized=False),
        "layer_types": [
            "full_attention" if count else "linear_attention" for count in _key_heads(metadata)
        ],
        "head_dim": metadata.require("kda.head_dim"),
        "short_conv_kernel_size": metadata.require("ssm.conv_kernel"),
        "kda_safe_gate": metadata.get("kda.safe_gate", True),
        "kda_lower_bound": metadata.require("kda.gate_lower_bound"),
    }


def youtu(metadata: Metadata) -> Mapping[str, Any]:
    return {**_latent(metadata), "rope_interleave": True}


def minicpm3(metadata: Metadata) -> Mapping[str, Any]:
    # llama.cpp has these numbers in its code.
    return {**_latent(metadata), "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
