"""Fields of config.json of Gemma, as `model_fields` for the others.

Source: llama.cpp's converter and loader.
"""

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

from swiftchat.weights.gguf.metadata import Metadata, is_size
from swiftchat.weights.gguf.model_fields import attention_bias, layer_types
from swiftchat.weights.gguf.rope import proportional_share

# llama.cpp recognizes the 27B models by their number of layers. Only their attention scores are
# scaled by hidden size / heads instead of the head size.
_GEMMA2_27B_LAYERS = 46
_GEMMA3_27B_LAYERS = 62


def gemma2(metadata: Metadata) -> Mapping[str, Any]:
    return {
        **_gemma(metadata, _GEMMA2_27B_LAYERS),
        "sliding_window": metadata.get("attention.sliding_window", 4096),
    }


def gemma3(metadata: Metadata) -> Mapping[str, Any]:
    return {
        **_gemma(metadata, _GEMMA3_27B_LAYERS),
        "rope_local_base_freq": metadata.get("rope.freq_base_swa", 10_000.0),
    }


def gemma3n(metadata: Metadata) -> Mapping[str, Any]:
    tensors = metadata.file.tensors
    table = tensors.get("per_layer_token_embd.weight")
    left = tensors.get("blk.0.laurel_l.weight")
    deviations = metadata.get("activation_sparsity_scale")
    shares = None
    if isinstance(deviations, list) and all(isinstance(each, float) for each in deviations):
        # The file has how many standard deviations the share of gates is above the mean.
        shares = [round(NormalDist().cdf(each), 4) for each in deviations]
    return {
        "attention_bias": attention_bias(metadata),
        "layer_types": layer_types(metadata),
        "num_kv_shared_layers": metadata.get("attention.shared_kv_layers", 0),
        "hidden_size_per_layer_input": metadata.get("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": None if table is None else table.shape[0],
        "laurel_rank": None if left is None else left.shape[0],
        "altup_active_idx": metadata.get("altup.active_idx"),
        "altup_num_inputs": metadata.get("altup.num_inputs"),
        "activation_sparsity_pattern": shares,
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
        "rope_local_base_freq": metadata.get("rope.freq_base_swa", 10_000.0),
    }


def gemma4(metadata: Metadata) -> Mapping[str, Any]:
    """Return the fields of Gemma 4; the keys without "swa" are for layers without a window."""
    kinds, tensors = layer_types(metadata) or [], metadata.file.tensors
    full = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    kv_heads = metadata.get("attention.head_count_kv")
    heads = dict(zip(kinds, kv_heads, strict=False)) if isinstance(kv_heads, list) else {}
    widths = metadata.get("feed_forward_length")
    first, last = (widths[0], widths[-1]) if isinstance(widths, list) and widths else (widths,) * 2
    head_dim = metadata.require("attention.key_length")
    table = tensors.get("per_layer_token_embd.weight")
    experts = metadata.get("expert_count")
    return {
        "head_dim": metadata.require("attention.key_length_swa"),
        "global_head_dim": head_dim,
        "num_key_value_heads": heads.get("sliding_attention", kv_heads),
        "num_global_key_value_heads": heads.get("full_attention"),
        "attention_k_eq_v": bool(full) and f"blk.{full[0]}.attn_v.weight" not in tensors,
        "attention_bias": attention_bias(metadata),
        "layer_types": kinds,
        "num_kv_shared_layers": metadata.get("attention.shared_kv_layers", 0),
        "intermediate_size": first,
        "use_double_wide_mlp": first != last,
        "hidden_size_per_layer_input": metadata.get("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": None if table is None else table.shape[0],
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
        "enable_moe_block": bool(experts),
        "num_experts": experts,
        "top_k_experts": metadata.get("expert_used_count"),
        "moe_intermediate_size": metadata.get("expert_feed_forward_length"),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": metadata.get("rope.freq_base", 1e6),
                "partial_rotary_factor": proportional_share(metadata.file, head_dim),
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": metadata.get("rope.freq_base_swa", 1e4),
            },
        },
    }


def _gemma(metadata: Metadata, layers_of_27b: int) -> dict[str, Any]:
    hidden, heads = metadata.get("embedding_length"), metadata.get("attention.head_count")
    scalar = metadata.head_dim
    if metadata.get("block_count") == layers_of_27b and is_size(hidden) and is_size(heads):
        scalar = hidden // heads
    return {
        "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": metadata.get("attn_logit_softcapping"),
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
        "layer_types": layer_types(metadata),
    }
