"""The part of `gguf_converter` for mixtures of experts; llama.cpp has not read these files."""

import numpy as np

from tests.support.gguf_converter import (
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
from tests.support.gguf_recent import granite_keys, window_keys


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


def _corrected(config: Fields, tensors: Fields) -> Tensors:
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


def _deepseek_keys(config: Fields) -> Fields:
    """DeepseekV2Model.set_gguf_parameters: one key and value head, of latents."""
    rank, rotated_dim = config["kv_lora_rank"], config["qk_rope_head_dim"]
    multiplier = config["rope_parameters"].get("mscale_all_dim")
    return {
        **common_keys(config),
        "attention.head_count_kv": 1,
        "expert_count": config.get("n_routed_experts"),
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_feed_forward_length": config.get(
            "moe_intermediate_size", config["intermediate_size"]
        ),
        "expert_shared_count": config.get("n_shared_experts", 0),
        "expert_weights_scale": config.get("routed_scaling_factor"),
        "expert_weights_norm": config["model_type"] != "deepseek_v2"
        and config.get("norm_topk_prob"),
        "expert_group_count": config.get("n_group"),
        "expert_group_used_count": config.get("topk_group"),
        "expert_gating_func": 1 if config["model_type"] == "deepseek_v2" else 2,
        "leading_dense_block_count": config.get("first_k_dense_replace", 1),
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rotated_dim,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotated_dim,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": rotated_dim,
        "rope.scaling.yarn_log_multiplier": multiplier and 0.1 * multiplier,
    }


def _deepseek(config: Fields, tensors: Fields) -> Tensors:
    """DeepseekV2Model.modify_tensors: merges experts, divides and turns kv_b."""
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    for name, array in _corrected(config, tensors):
        if "kv_b_proj" not in name:
            yield name, array
            continue
        by_head = array.reshape(heads, -1, array.shape[1])
        yield name.replace("kv_b_proj", "k_b_proj"), by_head[:, :nope].swapaxes(1, 2)
        yield name.replace("kv_b_proj", "v_b_proj"), by_head[:, nope:]


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


EXPERT_ARCHS: dict[str, Converter] = {
    "olmoe": (common_keys, qwen3moe),
    "ernie4_5-moe": (_ernie_moe_keys, _ernie_moe),
    "qwen2moe": (_qwen2moe_keys, qwen3moe),
    "qwen3vlmoe": (qwen3moe_keys, qwen3moe),
    "glm4moe": (_glm4moe_keys, _corrected),
    "dots1": (_glm4moe_keys, _corrected),
    "minimax-m2": (_minimax_keys, _minimax),
    "gpt-oss": (_gpt_oss_keys, _gpt_oss),
    "granitemoe": (granite_keys, granite_moe),
    "phimoe": (_phimoe_keys, _phimoe),
    "deepseek2": (_deepseek_keys, _deepseek),
    "hunyuan-moe": (_hunyuan_moe_keys, qwen3moe),
    "exaone-moe": (_exaone_moe_keys, _corrected),
    "llama4": (_llama4_keys, _llama4),
}
