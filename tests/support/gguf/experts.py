"""The part of `converter` for mixtures of experts; llama.cpp has not read these files."""

import numpy as np

from tests.support.gguf.converter import (
    Converter,
    Fields,
    Tensors,
    common_keys,
    experts,
    llama,
    llama_keys,
    qwen3moe,
    qwen3moe_keys,
    rotated,
)
from tests.support.gguf.recent import granite_keys, window_keys


def _qwen2moe_keys(config: Fields) -> Fields:
    """Qwen2MoeModel.set_gguf_parameters."""
    shared = config["shared_expert_intermediate_size"]
    return {**qwen3moe_keys(config), "expert_shared_feed_forward_length": shared}


def _glm4moe_keys(config: Fields) -> Fields:
    """Glm4MoeModel and Dots1Model.set_gguf_parameters."""
    return {
        **common_keys(config),
        "rope.dimension_count": rotated(config),
        "expert_count": config["n_routed_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_gating_func": 2,
    }


def _bailing(config: Fields, tensors: Fields) -> Tensors:
    """BailingMoeV2Model.modify_tensors: one matrix of queries, keys and values."""
    for name, array in corrected(config, tensors):
        place = name.removesuffix("self_attn.q_proj.weight")
        if place != name:
            parts = [tensors[f"{place}self_attn.{kind}_proj.weight"] for kind in "qkv"]
            yield f"{place}attention.query_key_value.weight", np.concatenate(parts)
        elif not name.endswith(("k_proj.weight", "v_proj.weight")):
            yield name, array


def corrected(config: Fields, tensors: Fields) -> Tensors:
    """Glm4MoeModel.modify_tensors and those like it: a suffix for the bias of the choice."""
    for name, array in qwen3moe(config, tensors):
        ends = name.endswith("e_score_correction_bias")
        yield name.replace("_correction_bias", "_correction.bias") if ends else name, array


def _ernie_moe_keys(config: Fields) -> Fields:
    """Ernie4_5MoeModel.set_gguf_parameters."""
    return {
        **common_keys(config),
        "expert_count": config["moe_num_experts"],
        "expert_used_count": config["moe_k"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["moe_num_shared_experts"],
        "leading_dense_block_count": config["moe_layer_start_index"],
        "interleave_moe_layer_step": config["moe_layer_interval"],
    }


def _ernie_moe(config: Fields, tensors: Fields) -> Tensors:
    """Ernie4_5MoeModel.modify_tensors: a suffix for the bias of the choice, in one dimension."""
    for name, array in qwen3moe(config, tensors):
        ends = name.endswith("e_score_correction_bias")
        name = name.replace("_correction_bias", "_correction.bias") if ends else name
        yield name, array.reshape(-1) if ends else array


def _minimax_keys(config: Fields) -> Fields:
    """MiniMaxM2Model.set_gguf_parameters."""
    return {
        **common_keys(config),
        "expert_feed_forward_length": config["intermediate_size"],
        "rope.dimension_count": rotated(config),
        "expert_gating_func": 2,
    }


def _minimax(config: Fields, tensors: Fields) -> Tensors:
    """MiniMaxM2Model.modify_tensors: merges experts, a suffix for the bias of the choice."""
    for name, array in experts(tensors, "block_sparse_moe.experts", ("w1", "w2", "w3")):
        ends = name.endswith("e_score_correction_bias")
        yield name.replace("_correction_bias", "_correction.bias") if ends else name, array


def _gpt_oss_keys(config: Fields) -> Fields:
    """GptOssModel.set_gguf_parameters."""
    return {
        **common_keys(config),
        "attention.sliding_window": config["sliding_window"],
        "expert_feed_forward_length": config["intermediate_size"],
    }


def _gpt_oss(config: Fields, tensors: Fields) -> Tensors:
    """GptOssModel.modify_tensors: separates gate and up, turns matrices, adds suffixes."""
    for name, array in tensors.items():
        if name.endswith("sinks"):
            yield f"{name}.weight", array
        elif ".experts." not in name:
            yield name, array
        else:
            name, suffix = name.removesuffix("_bias"), "bias" if "bias" in name else "weight"
            array = array if suffix == "bias" else array.swapaxes(1, 2)
            if "gate_up" not in name:
                yield f"{name}.{suffix}", array
                continue
            for i, kind in enumerate(("gate", "up")):
                yield f"{name.replace('gate_up', kind)}.{suffix}", array[:, i::2]


def granite_moe(config: Fields, tensors: Fields) -> Tensors:
    """GraniteMoeModel.modify_tensors: separates gate and up, permutes queries and keys."""
    for name, array in llama(config, tensors):
        if not name.endswith("block_sparse_moe.input_linear.weight"):
            yield name, array
            continue
        here = name.removesuffix("block_sparse_moe.input_linear.weight")
        for kind, half in zip(("gate", "up"), np.split(array, 2, axis=1), strict=True):
            yield f"{here}mlp.experts.{kind}_proj.weight", half


def _phimoe_keys(config: Fields) -> Fields:
    """PhiMoeModel.set_gguf_parameters, with those of Phi3MiniModel: no head size."""
    return {
        **common_keys(config),
        "rope.dimension_count": rotated(config),
        "rope.scaling.original_context_length": config.get("original_max_position_embeddings"),
        "attention.sliding_window": config.get("sliding_window") or 0,
        "attention.key_length": None,
        "attention.value_length": None,
    }


def _phimoe(config: Fields, tensors: Fields) -> Tensors:
    """PhiMoeModel.modify_tensors: merges experts."""
    return experts(tensors, "block_sparse_moe.experts", ("w1", "w2", "w3"))


def _hunyuan_moe_keys(config: Fields) -> Fields:
    """HunYuanMoEModel.set_gguf_parameters."""
    width = config["intermediate_size"]
    return {
        **common_keys(config),
        "expert_used_count": config["moe_topk"],
        "expert_feed_forward_length": width,
        "expert_shared_feed_forward_length": width,
        "expert_shared_count": 1,
    }


def _exaone_moe_keys(config: Fields) -> Fields:
    """ExaoneMoEModel.set_gguf_parameters."""
    width, shared = config["moe_intermediate_size"], config["num_shared_experts"]
    return {
        **window_keys(config),
        "expert_feed_forward_length": width,
        "expert_shared_count": shared,
        "expert_shared_feed_forward_length": width * shared,
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": config["norm_topk_prob"],
        "leading_dense_block_count": config["first_k_dense_replace"],
        "rope.scaling.type": "none",
    }


def _llama4_keys(config: Fields) -> Fields:
    """Llama4Model.set_gguf_parameters."""
    return {
        **llama_keys(config),
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_feed_forward_length": config["intermediate_size"],
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
    }


def _llama4(config: Fields, tensors: Fields) -> Tensors:
    """Llama4Model.modify_tensors: separates gate and up, turns the experts, permutes nothing."""
    for name, array in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for kind, half in zip(("gate", "up"), np.split(array, 2, axis=2), strict=True):
                yield f"{name.replace('gate_up', kind)}.weight", half.swapaxes(1, 2)
        elif name.endswith("experts.down_proj"):
            yield f"{name}.weight", array.swapaxes(1, 2)
        else:
            yield name, array


def _afmoe_keys(config: Fields) -> Fields:
    """AfmoeModel.set_gguf_parameters."""
    return {
        **llama_keys(config),
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_count": config["num_shared_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "leading_dense_block_count": config["num_dense_layers"],
        "expert_weights_norm": True,
        "expert_weights_scale": config["route_scale"],
        "attention.sliding_window": config["sliding_window"],
    }


def _afmoe(config: Fields, tensors: Fields) -> Tensors:
    """AfmoeModel.modify_tensors: merges experts, a suffix for the bias of the choice."""
    for name, array in qwen3moe(config, tensors):
        yield f"{name}.bias" if name.endswith("expert_bias") else name, array


def _dbrx_keys(config: Fields) -> Fields:
    """DbrxModel.set_gguf_parameters."""
    experts, attention = config["ffn_config"], config["attn_config"]
    return {
        "block_count": config["n_layers"],
        "context_length": config["max_seq_len"],
        "embedding_length": config["d_model"],
        "feed_forward_length": experts["ffn_hidden_size"],
        "attention.head_count": config["n_heads"],
        "attention.head_count_kv": attention["kv_n_heads"],
        "rope.freq_base": attention["rope_theta"],
        "attention.clamp_kqv": attention["clip_qkv"],
        "expert_count": experts["moe_num_experts"],
        "expert_used_count": experts["moe_top_k"],
        "attention.layer_norm_epsilon": 1e-5,
    }


def _dbrx(config: Fields, tensors: Fields) -> Tensors:
    """DbrxModel.modify_tensors: divides experts, turns those of the second matrix."""
    sizes = config["ffn_config"]
    shape = (sizes["moe_num_experts"], sizes["ffn_hidden_size"], config["d_model"])
    for name, array in tensors.items():
        if "ffn.experts.mlp" not in name:
            yield name, array
            continue
        each = array.reshape(shape)
        yield f"{name}.weight", each.swapaxes(1, 2) if name.endswith("w2") else each


def _mimo2_keys(config: Fields) -> Fields:
    """MimoV2Model.set_gguf_parameters, of the published config.json, which names the same sizes.

    There the window does not count the token itself.
    """
    windowed = [kind == "sliding_attention" for kind in config["layer_types"]]
    heads = config["num_key_value_heads"]
    rope = config["rope_parameters"]["full_attention"]
    return {
        **common_keys(config),
        "attention.head_count_kv": [2 * heads if each else heads for each in windowed],
        "attention.sliding_window": config["sliding_window"] - 1,
        "attention.sliding_window_pattern": windowed,
        "attention.value_length": config["v_head_dim"],
        "attention.value_scale": config["attention_value_scale"],
        "expert_count": config["n_routed_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_gating_func": 2,
        "rope.dimension_count": int(config["head_dim"] * rope["partial_rotary_factor"]),
    }


def _mimo2(config: Fields, tensors: Fields) -> Tensors:
    """MimoV2Model.modify_tensors: merges experts, adds suffixes."""
    for name, array in corrected(config, tensors):
        yield f"{name}.weight" if name.endswith("attention_sink_bias") else name, array


EXPERT_ARCHS: dict[str, Converter] = {
    "olmoe": (common_keys, qwen3moe),
    "ernie4_5-moe": (_ernie_moe_keys, _ernie_moe),
    "qwen2moe": (_qwen2moe_keys, qwen3moe),
    "qwen3vlmoe": (qwen3moe_keys, qwen3moe),
    "glm4moe": (_glm4moe_keys, corrected),
    "dots1": (_glm4moe_keys, corrected),
    "bailingmoe2": (_glm4moe_keys, _bailing),
    "minimax-m2": (_minimax_keys, _minimax),
    "gpt-oss": (_gpt_oss_keys, _gpt_oss),
    "granitemoe": (granite_keys, granite_moe),
    "phimoe": (_phimoe_keys, _phimoe),
    "hunyuan-moe": (_hunyuan_moe_keys, qwen3moe),
    "exaone-moe": (_exaone_moe_keys, corrected),
    "llama4": (_llama4_keys, _llama4),
    "afmoe": (_afmoe_keys, _afmoe),
    "dbrx": (_dbrx_keys, _dbrx),
    "mimo2": (_mimo2_keys, _mimo2),
}
