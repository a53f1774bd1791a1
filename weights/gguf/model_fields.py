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

_LLAMA4_EXPERTS_WITHOUT_NORM = 128
# The values of `expert_gating_func`: 1 is a softmax.
_SIGMOID = 2


def no_fields(metadata: Metadata) -> Mapping[str, Any]:
    return {}


def attention_bias(metadata: Metadata) -> bool:
    return metadata.has_tensor("attn_q.bias", "attn_qkv.bias")


def llama(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "attention_bias": attention_bias(metadata),
        "mlp_bias": metadata.has_tensor("ffn_up.bias"),
    }


def llama4(metadata: Metadata) -> Mapping[str, Any]:
    """Return the fields of Llama 4; chunks, temperature and rotation are those of its class."""
    experts = metadata.require("expert_count")
    if metadata.get("attention.sliding_window") == 0:
        raise BadModelFile(
            f"{metadata.file.path}: llama4 without attention in chunks is not supported"
        )
    return {
        "attention_bias": attention_bias(metadata),
        "intermediate_size": metadata.require("expert_feed_forward_length"),
        "intermediate_size_mlp": metadata.get("feed_forward_length"),
        "interleave_moe_layer_step": metadata.require("interleave_moe_layer_step"),
        "num_local_experts": experts,
        "num_experts_per_tok": metadata.require("expert_used_count"),
        # llama.cpp recognizes Maverick by its experts.
        "use_qk_norm": experts != _LLAMA4_EXPERTS_WITHOUT_NORM,
    }


def mixtral(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "num_local_experts": metadata.get("expert_count"),
        "num_experts_per_tok": metadata.require("expert_used_count"),
    }


def qwen3moe(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "attention_bias": attention_bias(metadata),
        "num_experts": metadata.require("expert_count"),
        "num_experts_per_tok": metadata.require("expert_used_count"),
        "intermediate_size": metadata.get("feed_forward_length"),
        "moe_intermediate_size": metadata.require("expert_feed_forward_length"),
        # llama.cpp always normalizes; there is no key.
        "norm_topk_prob": True,
    }


def layer_types(metadata: Metadata) -> list[str] | None:
    """Return the type of each layer; None if the file leaves it to the architecture.

    The pattern is either n (every nth layer has full attention) or a flag per layer (windowed).
    """
    pattern, count = metadata.get("attention.sliding_window_pattern"), metadata.get("block_count")
    if pattern is None or not is_size(count) or count > MAX_LAYERS:
        return None
    if type(pattern) is int and pattern >= 0:
        pattern = [pattern == 0 or (i + 1) % pattern != 0 for i in range(count)]
    if not isinstance(pattern, list) or len(pattern) != count:
        raise BadModelFile(
            f"{metadata.file.path}: {metadata.name}.attention.sliding_window_pattern must be "
            f"a number or a list of {count} flags"
        )
    return ["sliding_attention" if windowed else "full_attention" for windowed in pattern]


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


def starcoder(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "multi_query": metadata.get("attention.head_count_kv") == 1,
        "n_inner": metadata.get("feed_forward_length"),
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
            not isinstance(each, float) or not math.isclose(each, usual, rel_tol=1e-2)
            for each in found
        ):
            raise BadModelFile(f"{metadata.file.path}: apertus.{key} must be {usual} in each layer")
    fields = {"attention_bias": attention_bias(metadata), "hidden_act": "xielu"}
    if not ROPE_TENSORS.isdisjoint(metadata.file.tensors):
        return fields
    # Without fields of the rotation its class would stretch it.
    plain = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base", 10_000.0)}
    return {**fields, "rope_parameters": plain}


def granite_moe(metadata: Metadata) -> Mapping[str, Any]:
    fields = {**granite(metadata), **mixtral(metadata)}
    del fields["mlp_bias"]
    return fields


def phimoe(metadata: Metadata) -> Mapping[str, Any]:
    return {
        **mixtral(metadata),
        "attention_bias": attention_bias(metadata),
        "lm_head_bias": "output.bias" in metadata.file.tensors,
    }


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


def olmoe(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "num_experts": metadata.require("expert_count"),
        "num_experts_per_tok": metadata.require("expert_used_count"),
    }


def qwen2moe(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "num_experts": metadata.require("expert_count"),
        "num_experts_per_tok": metadata.require("expert_used_count"),
        "moe_intermediate_size": metadata.require("expert_feed_forward_length"),
        "shared_expert_intermediate_size": metadata.require("expert_shared_feed_forward_length"),
        "qkv_bias": attention_bias(metadata),
        # llama.cpp never normalizes; there is no key.
        "norm_topk_prob": False,
    }


def glm4moe(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "attention_bias": attention_bias(metadata),
        "use_qk_norm": metadata.has_tensor("attn_q_norm.weight"),
        "n_routed_experts": metadata.require("expert_count"),
        "num_experts_per_tok": metadata.require("expert_used_count"),
        "moe_intermediate_size": metadata.require("expert_feed_forward_length"),
        "n_shared_experts": metadata.get("expert_shared_count"),
        "first_k_dense_replace": metadata.get("leading_dense_block_count"),
        "routed_scaling_factor": metadata.get("expert_weights_scale"),
        "norm_topk_prob": metadata.get("expert_weights_norm"),
        "n_group": metadata.get("expert_group_count"),
        "topk_group": metadata.get("expert_group_used_count"),
    }


def dots1(metadata: Metadata) -> Mapping[str, Any]:
    fields = dict(glm4moe(metadata))
    del fields["use_qk_norm"]
    return fields


def ernie_moe(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "use_bias": attention_bias(metadata),
        "moe_num_experts": metadata.require("expert_count"),
        "moe_k": metadata.require("expert_used_count"),
        "moe_intermediate_size": metadata.require("expert_feed_forward_length"),
        "moe_num_shared_experts": metadata.get("expert_shared_count"),
        "moe_layer_start_index": metadata.get("leading_dense_block_count"),
        "moe_layer_interval": metadata.get("interleave_moe_layer_step"),
    }


def minimax_m2(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "num_local_experts": metadata.require("expert_count"),
        "num_experts_per_tok": metadata.require("expert_used_count"),
    }


def hunyuan_moe(metadata: Metadata) -> Mapping[str, Any]:
    width = metadata.get("feed_forward_length")
    for key in ("expert_feed_forward_length", "expert_shared_feed_forward_length"):
        if metadata.get(key, width) != width:
            raise BadModelFile(
                f"{metadata.file.path}: hunyuan-moe.{key} differs from feed_forward_length"
            )
    return {
        "num_experts": metadata.require("expert_count"),
        "moe_topk": metadata.require("expert_used_count"),
        "attention_bias": attention_bias(metadata),
    }


def exaone_moe(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "layer_types": layer_types(metadata),
        "num_experts": metadata.require("expert_count"),
        "num_experts_per_tok": metadata.require("expert_used_count"),
        "moe_intermediate_size": metadata.require("expert_feed_forward_length"),
        "num_shared_experts": metadata.get("expert_shared_count"),
        "first_k_dense_replace": metadata.get("leading_dense_block_count"),
        "routed_scaling_factor": metadata.get("expert_weights_scale"),
        "norm_topk_prob": metadata.get("expert_weights_norm"),
        "n_group": metadata.get("expert_group_count"),
        "topk_group": metadata.get("expert_group_used_count"),
    }


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
        "n_routed_experts": metadata.require("expert_count"),
        "num_experts_per_tok": metadata.require("expert_used_count"),
        "moe_intermediate_size": metadata.require("expert_feed_forward_length"),
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
