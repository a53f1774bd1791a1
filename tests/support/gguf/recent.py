"""The part of `converter` for recent architectures; llama.cpp has not read these files."""

import re

import numpy as np
import torch

from tests.support.gguf.converter import (
    Converter,
    Fields,
    Tensors,
    as_they_are,
    common_keys,
    llama,
    llama_keys,
    rotated,
)


def granite_keys(config: Fields) -> Fields:
    """GraniteModel.set_gguf_parameters."""
    return {
        **llama_keys(config),
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
    }


def _minicpm_keys(config: Fields) -> Fields:
    """MiniCPMModel.set_gguf_parameters; here the config is Granite's."""
    return {
        **common_keys(config),
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
    }


def _rotated_keys(config: Fields) -> Fields:
    """ExaoneModel.set_gguf_parameters."""
    return {**common_keys(config), "rope.dimension_count": rotated(config)}


def _apertus(config: Fields, tensors: Fields) -> Tensors:
    """ApertusModel.modify_tensors: the numbers of the activation become metadata."""
    for name, array in tensors.items():
        if ".act_fn." not in name:
            yield name, array
    for kind in ("alpha_p", "alpha_n", "beta", "eps"):
        layers = range(config["num_hidden_layers"])
        numbers = [tensors[f"model.layers.{i}.mlp.act_fn.{kind}"].reshape(()) for i in layers]
        yield f"apertus.xielu.{kind}", np.stack(numbers)


def _cohere_keys(config: Fields) -> Fields:
    """CommandR2Model and Cohere2Model.set_gguf_parameters."""
    return {
        **common_keys(config),
        "logit_scale": config["logit_scale"],
        "rope.scaling.type": "none",
        "attention.sliding_window": config.get("sliding_window"),
    }


def window_keys(config: Fields) -> Fields:
    """Exaone4Model and Olmo2Model.set_gguf_parameters."""
    kinds = config.get("layer_types")
    return {
        **common_keys(config),
        "attention.sliding_window": config.get("sliding_window"),
        "attention.sliding_window_pattern": kinds and [kind[0] == "s" for kind in kinds],
        "rope.freq_base_swa": None,
    }


def _bitnet_keys(config: Fields) -> Fields:
    """BitnetModel.set_gguf_parameters, and the key of the loader for another activation.

    The converter also rounds the weights; those of published models are rounded already.
    """
    return {
        **common_keys(config),
        "hidden_activation": config["hidden_act"],
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 1.0,
    }


def _bitnet(config: Fields, tensors: Fields) -> Tensors:
    """BitnetModel.modify_tensors: the names that its norms had at first."""
    for name, array in tensors.items():
        name = name.replace("attn_sub_norm", "inner_attn_ln")
        yield name.replace("ffn_sub_norm", "ffn_layernorm"), array


def _olmo_keys(config: Fields) -> Fields:
    """OlmoModel.set_gguf_parameters."""
    return {
        **common_keys(config),
        "attention.layer_norm_epsilon": 1e-5,
        "attention.clamp_kqv": config.get("clip_qkv"),
    }


def _nemotron_keys(config: Fields) -> Fields:
    """NemotronModel.set_gguf_parameters."""
    return {
        **common_keys(config),
        "attention.layer_norm_epsilon": config["norm_eps"],
        "rope.dimension_count": rotated(config, 0.5),
    }


def _nemotron(config: Fields, tensors: Fields) -> Tensors:
    """NemotronModel.modify_tensors: norms with 1 added."""
    for name, array in tensors.items():
        yield name, array + np.float32(1) if name.endswith("norm.weight") else array


def _minicpm3_keys(config: Fields) -> Fields:
    """MiniCPM3Model.set_gguf_parameters."""
    return {
        **common_keys(config),
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "attention.key_length": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length": None,
        "rope.dimension_count": config["qk_rope_head_dim"],
    }


def _gemma4_keys(config: Fields) -> Fields:
    """Gemma4Model.set_gguf_parameters."""
    kinds, shared = config["layer_types"], config["num_kv_shared_layers"]
    wide = next(iter(config["per_layer_config"].values()))
    width, own = config["intermediate_size"], len(kinds) - shared
    heads = {"s": config["num_key_value_heads"], "f": wide["num_key_value_heads"]}
    return {
        **common_keys(config),
        "attention.head_count_kv": [heads[kind[0]] for kind in kinds],
        "attention.key_length": wide["head_dim"],
        "attention.value_length": wide["head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.shared_kv_layers": shared,
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind[0] == "s" for kind in kinds],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "feed_forward_length": [width * (1 + (i >= own)) for i in range(len(kinds))],
        "expert_used_count": config["top_k_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "rope.dimension_count": wide["head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
    }


def _gemma4(config: Fields, tensors: Fields) -> Tensors:
    """Gemma4Model.modify_tensors: suffixes, and two vectors with names of their own."""
    for name, array in tensors.items():
        layer = name.split(".")[2]
        if name.endswith("router.scale"):
            yield f"blk.{layer}.ffn_gate_inp.scale", array
        elif name.endswith("per_expert_scale"):
            yield f"blk.{layer}.ffn_down_exps.scale", array
        else:
            needs_suffix = ".experts." in name or name.endswith("layer_scalar")
            yield f"{name}.weight" if needs_suffix else name, array


def _gemma3n_keys(config: Fields) -> Fields:
    """Gemma3NModel.set_gguf_parameters."""
    shares = config["activation_sparsity_pattern"]
    return {
        **common_keys(config),
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind[0] == "s" for kind in config["layer_types"]],
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "altup.active_idx": config["altup_active_idx"],
        "altup.num_inputs": config["altup_num_inputs"],
        "activation_sparsity_scale": [
            float(torch.distributions.Normal(0, 1).icdf(torch.tensor(share))) for share in shares
        ],
    }


def _gemma3n(config: Fields, tensors: Fields) -> Tensors:
    """Gemma3NModel.modify_tensors: stacks the projections of streams, adds a suffix."""
    for name, array in tensors.items():
        if not re.search(r"altup_(unembed_)?projections\.\d", name):
            yield f"{name}.weight" if name.endswith("_scale") else name, array
        elif ".0." in name:
            parts = [tensors[name.replace(".0.", f".{i}.")] for i in range(3)]
            yield name.replace(".0.", "."), np.stack(parts)


def _mistral3_keys(config: Fields) -> Fields:
    """Mistral3Model.set_gguf_parameters."""
    rope = config["rope_parameters"]
    return {
        **llama_keys(config),
        "rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
        "attention.temperature_scale": rope["llama_4_scaling_beta"],
    }


def _mpt_keys(config: Fields) -> Fields:
    """MPTModel.set_gguf_parameters."""
    return {
        "block_count": config["n_layers"],
        "context_length": config["max_seq_len"],
        "embedding_length": config["d_model"],
        "feed_forward_length": 4 * config["d_model"],
        "attention.head_count": config["n_heads"],
        "attention.layer_norm_epsilon": 1e-5,
        "attention.clamp_kqv": config["attn_config"]["clip_qkv"],
        "attention.max_alibi_bias": float(config["attn_config"]["alibi_bias_max"]),
    }


RECENT_ARCHS: dict[str, Converter] = {
    "granite": (granite_keys, llama),
    "minicpm": (_minicpm_keys, llama),
    "exaone": (_rotated_keys, as_they_are),
    "apertus": (llama_keys, _apertus),
    "arcee": (llama_keys, llama),
    "command-r": (_cohere_keys, as_they_are),
    "cohere2": (_cohere_keys, as_they_are),
    "exaone4": (window_keys, as_they_are),
    "olmo": (_olmo_keys, llama),
    "nemotron": (_nemotron_keys, _nemotron),
    "seed_oss": (common_keys, as_they_are),
    "ernie4_5": (common_keys, as_they_are),
    "hunyuan-dense": (common_keys, as_they_are),
    "hunyuan_vl": (common_keys, as_they_are),
    "qwen2vl": (common_keys, as_they_are),
    "qwen3vl": (common_keys, as_they_are),
    "minicpm3": (_minicpm3_keys, as_they_are),
    "gemma4": (_gemma4_keys, _gemma4),
    "gemma3n": (_gemma3n_keys, _gemma3n),
    "mistral3": (_mistral3_keys, llama),
    "olmo2": (window_keys, as_they_are),  # OLMo 3 too
    "mpt": (_mpt_keys, as_they_are),
    "bitnet": (_bitnet_keys, _bitnet),
    "jais2": (_rotated_keys, as_they_are),
}
