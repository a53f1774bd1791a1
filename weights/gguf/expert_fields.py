"""Fields of config.json of mixtures of experts, as `model_fields` for the others.

Source: llama.cpp's converter and loader.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.gguf.metadata import Metadata, is_size
from swiftchat.weights.gguf.model_fields import (
    attention_bias,
    granite,
    layer_types,
    windows_and_rotated_layers,
)
from swiftchat.weights.gguf.rope import rope_by_kind

SOFTMAX, SIGMOID = 1, 2  # the values of `expert_gating_func`
_LLAMA4_EXPERTS_WITHOUT_NORM = 128
_LAGUNA_PERIOD = 4  # of windows, in files that do not name it


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


def mlp_layer_types(metadata: Metadata) -> list[str]:
    """Return which layers have experts: those with a router."""
    sparse = metadata.layers_with("ffn_gate_inp.weight")
    return ["sparse" if has_experts else "dense" for has_experts in sparse]


def _require_normalized_sigmoid(metadata: Metadata) -> None:
    """Raise `BadModelFile` for a router that the classes with sigmoid scores cannot have."""
    if metadata.get("expert_gating_func", SIGMOID) != SIGMOID:
        raise BadModelFile(
            f"{metadata.file.path}: {metadata.name}.expert_gating_func must be {SIGMOID}: experts "
            "always have sigmoid scores"
        )
    if metadata.get("expert_weights_norm") is False:
        raise BadModelFile(
            f"{metadata.file.path}: {metadata.name}.expert_weights_norm must be true: weights of "
            "experts are always normalized"
        )


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
    _require_normalized_sigmoid(metadata)
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
    heads = heads[: metadata.num_layers] if isinstance(heads, list) else []
    full: Any = heads[0] if heads else None
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
    return {
        **experts(metadata, "n_routed_experts"),
        "attention_bias": attention_bias(metadata),
        "num_key_value_heads": full,
        "v_head_dim": metadata.get("attention.value_length"),
        "layer_types": kinds,
        "mlp_layer_types": mlp_layer_types(metadata),
        # As in the published config.json, the token itself is not counted. llama.cpp counts it.
        "sliding_window_size": metadata.require("attention.sliding_window"),
        # Older files lack it; the default is that of the published model.
        "attention_value_scale": metadata.get("attention.value_scale"),
        "routed_scaling_factor": metadata.get("expert_weights_scale"),
        "n_group": metadata.get("expert_group_count"),
        "topk_group": metadata.get("expert_group_used_count"),
        "rope_parameters": rope_by_kind(metadata),
    }


def hy_v3(metadata: Metadata) -> Mapping[str, Any]:
    _require_normalized_sigmoid(metadata)
    width = metadata.require("expert_feed_forward_length")
    shared = metadata.get("expert_shared_feed_forward_length", width)
    if not is_size(width) or not is_size(shared) or shared % width:
        raise BadModelFile(
            f"{metadata.file.path}: hy_v3.expert_shared_feed_forward_length must be a multiple of "
            "expert_feed_forward_length"
        )
    return {
        **experts(metadata),
        "attention_bias": attention_bias(metadata),
        "num_shared_experts": shared // width,
        "router_scaling_factor": metadata.get("expert_weights_scale") or 1.0,
        "mlp_layer_types": mlp_layer_types(metadata),
    }


def mellum(metadata: Metadata) -> Mapping[str, Any]:
    return {
        **experts(metadata, "num_local_experts"),
        "attention_bias": attention_bias(metadata),
        # llama.cpp always normalizes; there is no key.
        "norm_topk_prob": True,
        "layer_types": layer_types(metadata),
        "mlp_layer_types": mlp_layer_types(metadata),
        "rope_parameters": rope_by_kind(metadata),
    }


def laguna(metadata: Metadata) -> Mapping[str, Any]:
    """Return the fields of Laguna; the size of its gates says whether a head has one or many."""
    _require_normalized_sigmoid(metadata)
    heads = metadata.require("attention.head_count")
    heads = heads[: metadata.num_layers] if isinstance(heads, list) else [heads]
    gates = metadata.file.tensors.get("blk.0.attn_gate.weight")
    by_head = gates is None or gates.shape[:1] == tuple(heads[:1])
    windowed = bool(metadata.get("attention.sliding_window"))
    return {
        **experts(metadata),
        "num_attention_heads": heads[0] if heads else None,
        "num_attention_heads_per_layer": heads if len(heads) > 1 else None,
        "attention_bias": attention_bias(metadata),
        "gating": "per-head" if by_head else "per-element",
        "layer_types": layer_types(metadata, _LAGUNA_PERIOD, full_first=True) if windowed else None,
        "mlp_layer_types": mlp_layer_types(metadata),
        "shared_expert_intermediate_size": metadata.require("expert_shared_feed_forward_length"),
        "moe_routed_scaling_factor": metadata.get("expert_weights_scale") or 1.0,
        "rope_parameters": rope_by_kind(metadata),
    }


def cohere2_moe(metadata: Metadata) -> Mapping[str, Any]:
    """Return the fields of Command A with experts; its norms are RMS norms if there is their eps.

    The output of shared and other experts is always averaged.
    """
    if metadata.get("expert_weights_scale") not in (None, 0, 1):
        raise BadModelFile(
            f"{metadata.file.path}: cohere2moe.expert_weights_scale is not supported"
        )
    function = metadata.get("expert_gating_func", SIGMOID)
    return {
        "num_experts": metadata.require("expert_count"),
        "num_experts_per_tok": metadata.require("expert_used_count"),
        "intermediate_size": metadata.require("expert_feed_forward_length"),
        "prefix_dense_intermediate_size": metadata.get("feed_forward_length"),
        "num_shared_experts": metadata.get("expert_shared_count", 0),
        "expert_selection_fn": {SOFTMAX: "softmax", SIGMOID: "sigmoid"}.get(function, function),
        "norm_topk_prob": metadata.get("expert_weights_norm", False),
        "layer_norm_eps": metadata.get("attention.layer_norm_epsilon"),
        "rms_norm_eps": metadata.get("attention.layer_norm_rms_epsilon") or None,
        "layer_types": layer_types(metadata, full_first=True),
        "mlp_layer_types": mlp_layer_types(metadata),
        "logit_scale": metadata.get("logit_scale"),
    }


def granite_moe_swa(metadata: Metadata) -> Mapping[str, Any]:
    return {
        **granite_moe(metadata),
        **windows_and_rotated_layers(metadata),
        "shared_intermediate_size": metadata.get("expert_shared_feed_forward_length", 0),
    }
