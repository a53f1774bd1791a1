"""Fields of config.json of mixtures of experts, as `model_fields` for the others.

Source: llama.cpp's converter and loader.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.gguf.metadata import Metadata, is_size
from swiftchat.weights.gguf.model_fields import attention_bias, granite, layer_types

_LLAMA4_EXPERTS_WITHOUT_NORM = 128


def experts(metadata: Metadata, count: str = "num_experts") -> dict[str, Any]:
    """Return the number of experts, as field `count`, of those for a token, and their width."""
    return {
        count: metadata.require("expert_count"),
        "num_experts_per_tok": metadata.require("expert_used_count"),
        "moe_intermediate_size": metadata.require("expert_feed_forward_length"),
    }


def _sigmoid_router(metadata: Metadata) -> dict[str, Any]:
    return {
        "first_k_dense_replace": metadata.get("leading_dense_block_count"),
        "routed_scaling_factor": metadata.get("expert_weights_scale"),
        "norm_topk_prob": metadata.get("expert_weights_norm"),
        "n_group": metadata.get("expert_group_count"),
        "topk_group": metadata.get("expert_group_used_count"),
    }


def mixtral(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "num_local_experts": metadata.get("expert_count"),
        "num_experts_per_tok": metadata.require("expert_used_count"),
    }


def qwen2moe(metadata: Metadata) -> Mapping[str, Any]:
    return {
        **experts(metadata),
        "shared_expert_intermediate_size": metadata.require("expert_shared_feed_forward_length"),
        "qkv_bias": attention_bias(metadata),
        # llama.cpp never normalizes; there is no key.
        "norm_topk_prob": False,
    }


def qwen3moe(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "attention_bias": attention_bias(metadata),
        **experts(metadata),
        "intermediate_size": metadata.get("feed_forward_length"),
        # llama.cpp always normalizes; there is no key.
        "norm_topk_prob": True,
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


def olmoe(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "num_experts": metadata.require("expert_count"),
        "num_experts_per_tok": metadata.require("expert_used_count"),
    }


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


def glm4moe(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "attention_bias": attention_bias(metadata),
        "use_qk_norm": metadata.has_tensor("attn_q_norm.weight"),
        **experts(metadata, "n_routed_experts"),
        **_sigmoid_router(metadata),
        "n_shared_experts": metadata.get("expert_shared_count"),
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


def afmoe(metadata: Metadata) -> Mapping[str, Any]:
    if metadata.get("expert_weights_norm") is False:
        raise BadModelFile(
            f"{metadata.file.path}: afmoe.expert_weights_norm must be true: weights of experts "
            "are always normalized"
        )
    return {
        **experts(metadata),
        "layer_types": layer_types(metadata),
        "num_dense_layers": metadata.get("leading_dense_block_count"),
        "num_shared_experts": metadata.get("expert_shared_count"),
        "route_scale": metadata.get("expert_weights_scale"),
        # llama.cpp always scales embeddings; there is no key.
        "mup_enabled": True,
    }


def dbrx(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "attn_config": {
            "kv_n_heads": metadata.get("attention.head_count_kv"),
            "clip_qkv": metadata.get("attention.clamp_kqv"),
            "rope_theta": metadata.get("rope.freq_base", 10_000.0),
        },
        "ffn_config": {
            "ffn_hidden_size": metadata.get("feed_forward_length"),
            "moe_num_experts": metadata.require("expert_count"),
            "moe_top_k": metadata.require("expert_used_count"),
        },
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
        **experts(metadata),
        **_sigmoid_router(metadata),
        "num_shared_experts": metadata.get("expert_shared_count"),
    }


def mimo2(metadata: Metadata) -> Mapping[str, Any]:
    """Return the fields of MiMo-V2-Flash; a layer with a window has twice as many keys."""
    kinds, heads = layer_types(metadata), metadata.require("attention.head_count_kv")
    full: Any = heads[0] if isinstance(heads, list) and heads else None
    if (
        kinds is None
        or not is_size(full)
        or heads != [full * (2 if kind == "sliding_attention" else 1) for kind in kinds]
    ):
        raise BadModelFile(
            f"{metadata.file.path}: mimo2 needs a window pattern, and twice as many "
            "attention.head_count_kv in layers with a window"
        )
    if metadata.get("rope.scaling.factor") not in (None, 0, 1):
        raise BadModelFile(f"{metadata.file.path}: mimo2 with rope scaling is not supported")
    kinds = kinds[: len(kinds) - metadata.num_nextn_layers]
    share, routers = metadata.rotated_share, metadata.file.tensors
    thetas = {"full_attention": "rope.freq_base", "sliding_attention": "rope.freq_base_swa"}
    return {
        **experts(metadata, "n_routed_experts"),
        "attention_bias": attention_bias(metadata),
        "num_key_value_heads": full,
        "v_head_dim": metadata.get("attention.value_length"),
        "layer_types": kinds,
        "mlp_layer_types": [
            "sparse" if f"blk.{i}.ffn_gate_inp.weight" in routers else "dense"
            for i in range(len(kinds))
        ],
        # As in the published config.json, the token itself is not counted. llama.cpp counts it.
        "sliding_window_size": metadata.require("attention.sliding_window"),
        # Older files lack it; the default is that of the published model.
        "attention_value_scale": metadata.get("attention.value_scale"),
        "routed_scaling_factor": metadata.get("expert_weights_scale"),
        "n_group": metadata.get("expert_group_count"),
        "topk_group": metadata.get("expert_group_used_count"),
        "rope_parameters": {
            kind: {
                "rope_type": "default",
                "rope_theta": metadata.require(key),
                "partial_rotary_factor": share,
            }
            for kind, key in thetas.items()
        },
    }
