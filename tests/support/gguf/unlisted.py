"""The part of `converter` for architectures that the installed `gguf` package does not list.

The names of keys and tensors are those of llama.cpp's loaders. llama.cpp has not read these files.
"""

import numpy as np

from tests.support.gguf.converter import (
    Converter,
    Fields,
    Tensors,
    common_keys,
    llama,
    qwen3moe,
    qwen3moe_keys,
)
from tests.support.gguf.latent import deepseek, glm_dsa_keys
from tests.support.gguf.recent import granite_keys

_SIGMOID = 2


def _at(name: str, tensor: str) -> str:
    """Return the GGUF name of a tensor in the layer of the tensor `name` of Hugging Face."""
    return f"blk.{name.split('.')[2]}.{tensor}"


def _windows(config: Fields) -> Fields:
    kinds = config["layer_types"]
    return {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
    }


def _hy_v3_keys(config: Fields) -> Fields:
    """HYV3Model.set_gguf_parameters."""
    width = config["moe_intermediate_size"]
    return {
        **qwen3moe_keys(config),
        "expert_shared_feed_forward_length": width * config["num_shared_experts"],
        "expert_weights_norm": True,
        "expert_weights_scale": config["router_scaling_factor"],
        "expert_gating_func": _SIGMOID,
    }


def _hy_v3(config: Fields, tensors: Fields) -> Tensors:
    """HYV3Model.modify_tensors; the loader reads the bias of the choice without a suffix."""
    for name, array in qwen3moe(config, tensors):
        if name.endswith("mlp.expert_bias"):
            yield _at(name, "exp_probs_b"), array
        else:
            name = name.replace("mlp.router.gate", "mlp.gate")
            yield name.replace("shared_mlp", "shared_experts"), array


def _mellum_keys(config: Fields) -> Fields:
    """MellumModel.set_gguf_parameters."""
    return {**qwen3moe_keys(config), **_windows(config)}


def _laguna_keys(config: Fields) -> Fields:
    """LagunaModel.set_gguf_parameters: the period of the windows is the loader's."""
    ropes, head_dim = config["rope_parameters"], config["head_dim"]
    rotated = {
        kind: int(head_dim * ropes[kind].get("partial_rotary_factor", 1.0)) for kind in ropes
    }
    return {
        **qwen3moe_keys(config),
        "attention.head_count": config["num_attention_heads_per_layer"],
        "attention.sliding_window": config["sliding_window"],
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
        "expert_weights_norm": True,
        "expert_weights_scale": config["moe_routed_scaling_factor"],
        "expert_gating_func": _SIGMOID,
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        "rope.dimension_count": rotated["full_attention"],
        "rope.dimension_count_swa": rotated["sliding_attention"],
    }


def _laguna(config: Fields, tensors: Fields) -> Tensors:
    """LagunaModel.modify_tensors: merges experts, which the bias of the choice is named after."""
    biases = {name for name in tensors if name.endswith("e_score_correction_bias")}
    for name in biases:
        yield _at(name, "exp_probs_b.bias"), tensors[name]
    rest = {name: array for name, array in tensors.items() if name not in biases}
    for name, array in qwen3moe(config, rest):
        if name.endswith("g_proj.weight"):
            yield _at(name, "attn_gate.weight"), array
        else:
            yield name.replace("shared_expert.", "shared_experts."), array


def _cohere_keys(config: Fields) -> Fields:
    """Cohere2MoeModel.set_gguf_parameters; it reads the width of dense layers first."""
    width, shared = config["intermediate_size"], config["num_shared_experts"]
    return {
        **common_keys(config),
        **_windows(config),
        "feed_forward_length": config["prefix_dense_intermediate_size"],
        "logit_scale": config["logit_scale"],
        "expert_feed_forward_length": width,
        "expert_shared_count": shared or None,
        "expert_shared_feed_forward_length": width * shared or None,
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_gating_func": {"softmax": 1, "sigmoid": _SIGMOID}[config["expert_selection_fn"]],
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        "rope.dimension_count": config["head_dim"],
        "rope.scaling.type": "none",
    }


def _granite_keys(config: Fields) -> Fields:
    """GraniteModel.set_gguf_parameters, and the keys of the loader for windows and rotation."""
    bases = config["layer_rope_theta"]
    return {
        **granite_keys(config),
        **_windows(config),
        "attention.rope_pattern": [int(bool(base)) for base in bases],
        "rope.freq_base": max(bases),
        "expert_shared_feed_forward_length": config.get("shared_intermediate_size"),
    }


def _granite(config: Fields, tensors: Fields) -> Tensors:
    """GraniteMoeModel.modify_tensors, but gate and up of the shared expert stay merged."""
    stacked = {name for name in tensors if "block_sparse_moe.experts." in name}
    for name in stacked:
        kinds = ("gate", "up") if "gate_up" in name else ("down",)
        parts = np.split(tensors[name], len(kinds), axis=1)
        for kind, part in zip(kinds, parts, strict=True):
            yield _at(name, f"ffn_{kind}_exps.weight"), part
    rest = {name: array for name, array in tensors.items() if name not in stacked}
    names = {
        "self_attn.sinks": "attn_sinks.weight",
        "shared_mlp.input_linear.weight": "ffn_up_shexp.weight",
        "shared_mlp.output_linear.weight": "ffn_down_shexp.weight",
        "block_sparse_moe.router.weight": "ffn_gate_inp.weight",
    }
    for name, array in llama(config, rest):
        found = next((tensor for end, tensor in names.items() if name.endswith(end)), None)
        yield _at(name, found) if found else name, array


def _bailing_keys(config: Fields) -> Fields:
    """BailingMoeV3Model.set_gguf_parameters."""
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    return {
        **common_keys(config),
        "context_length": config["model_max_length"],
        "attention.head_count_kv": [
            int(kind == "full_attention") for kind in config["layer_types"]
        ],
        "ssm.conv_kernel": config["short_conv_kernel_size"],
        "kda.head_dim": config["linear_head_dim"],
        "kda.safe_gate": config["kda_safe_gate"],
        "kda.gate_lower_bound": config["kda_lower_bound"],
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": rotated,
        "attention.key_length": rank + rotated,
        "attention.value_length": None,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotated,
        "attention.value_length_mla": config["v_head_dim"],
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_token"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["num_shared_experts"],
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": config["moe_renormalize"],
        "expert_group_count": config["num_expert_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_gating_func": _SIGMOID,
    }


def _bailing(config: Fields, tensors: Fields) -> Tensors:
    """BailingMoeV3Model.modify_tensors: turns convolutions and decays, divides kv_b."""
    kinds = config["layer_types"]
    for name, array in deepseek(config, tensors):
        if name.endswith("word_embeddings.weight"):
            yield "model.embed_tokens.weight", array
        elif "_conv1d" in name:
            yield (
                _at(name, f"ssm_conv1d_{name.split('.')[4][0]}.weight"),
                array.reshape(1, len(array), 1, -1),
            )
        elif name.endswith("A_log"):
            yield _at(name, "ssm_a"), np.exp(array).reshape(-1, 1)
        elif name.endswith("dt_bias"):
            yield _at(name, "ssm_dt.bias"), array
        elif name.endswith("f_proj.weight"):
            yield _at(name, "ssm_f_a.weight"), array
        elif name.endswith("g_proj.weight"):
            is_full = kinds[int(name.split(".")[2])] == "full_attention"
            yield _at(name, "attn_gate.weight" if is_full else "ssm_g_a.weight"), array
        elif name.endswith("expert_bias"):
            yield _at(name, "exp_probs_b.bias"), array
        else:
            name = name.replace("attention.dense", "self_attn.o_proj")
            yield name.replace(".attention.", ".self_attn."), array


# The functions by `general.architecture`, and a listed one with the same names of tensors.
UNLISTED_ARCHS: dict[str, Converter] = {
    "hy_v3": (_hy_v3_keys, _hy_v3),
    "mellum": (_mellum_keys, qwen3moe),
    "laguna": (_laguna_keys, _laguna),
    "cohere2moe": (_cohere_keys, qwen3moe),
    "granite_swa": (_granite_keys, _granite),
    "deepseek32": (glm_dsa_keys, deepseek),
    "bailingmoe3": (_bailing_keys, _bailing),
}
NAMES_OF = {
    "hy_v3": "dots1",
    "mellum": "qwen3moe",
    "laguna": "dots1",
    "cohere2moe": "dots1",
    "granite_swa": "llama",
    "deepseek32": "glm-dsa",
    "bailingmoe3": "kimi-linear",
}
