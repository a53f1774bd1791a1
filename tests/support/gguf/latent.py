"""The part of `converter` for latent attention; llama.cpp has not read these files."""

import numpy as np

from tests.support.gguf.converter import Converter, Fields, Tensors, common_keys, experts
from tests.support.gguf.experts import corrected


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


def deepseek(config: Fields, tensors: Fields) -> Tensors:
    """DeepseekV2Model.modify_tensors: merges experts, divides and turns kv_b."""
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    for name, array in corrected(config, tensors):
        if "kv_b_proj" not in name:
            yield name, array
            continue
        by_head = array.reshape(heads, -1, array.shape[1])
        yield name.replace("kv_b_proj", "k_b_proj"), by_head[:, :nope].swapaxes(1, 2)
        yield name.replace("kv_b_proj", "v_b_proj"), by_head[:, nope:]


def _mistral4_keys(config: Fields) -> Fields:
    """Mistral3Model.Mistral4Model.set_gguf_parameters."""
    return {**_deepseek_keys(config), "expert_gating_func": 1}


def _mistral4(config: Fields, tensors: Fields) -> Tensors:
    """Mistral4Model.modify_tensors: a suffix for experts, which keep gate and up together."""
    stacked = [name for name in tensors if ".mlp.experts." in name]
    yield from ((f"{name}.weight", tensors[name]) for name in stacked)
    rest = {name: array for name, array in tensors.items() if name not in stacked}
    yield from deepseek(config, rest)


def glm_dsa_keys(config: Fields) -> Fields:
    """GlmMoeDsaModel.set_gguf_parameters."""
    return {
        **_deepseek_keys(config),
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"],
    }


def _kimi_keys(config: Fields) -> Fields:
    """KimiLinearModel.set_gguf_parameters."""
    rank, rotated_dim = config["kv_lora_rank"], config["qk_rope_head_dim"]
    return {
        **common_keys(config),
        "context_length": config["model_max_length"],
        "rope.freq_base": None,
        "attention.head_count_kv": [
            int(kind == "full_attention") for kind in config["layer_types"]
        ],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "kda.head_dim": config["linear_head_dim"],
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": rotated_dim,
        "attention.key_length": rank + rotated_dim,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotated_dim,
        "attention.value_length_mla": config["v_head_dim"],
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_token"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["num_shared_experts"],
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_group_count": config["num_expert_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_gating_func": 2,
    }


def _kimi(config: Fields, tensors: Fields) -> Tensors:
    """KimiLinearModel.modify_tensors: turns convolutions and decays, divides kv_b."""
    merged = dict(experts(tensors, "block_sparse_moe.experts", ("w1", "w2", "w3")))
    for name, array in deepseek(config, merged):
        if "_conv1d" in name:
            yield name, array.reshape(1, len(array), 1, -1)
        elif name.endswith("A_log"):
            yield name, -np.exp(array)
        else:
            yield name.replace("dt_bias", "dt_proj.bias"), array


LATENT_ARCHS: dict[str, Converter] = {
    "deepseek2": (_deepseek_keys, deepseek),
    "mistral4": (_mistral4_keys, _mistral4),
    "glm-dsa": (glm_dsa_keys, deepseek),
    "kimi-linear": (_kimi_keys, _kimi),
}
