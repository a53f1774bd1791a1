"""The part of `converter` for models with states; llama.cpp has not read these files."""

import numpy as np

from tests.support.gguf.converter import (
    Converter,
    Fields,
    Tensors,
    common_keys,
    experts,
    qwen3moe,
    rotated,
)
from tests.support.gguf.experts import granite_moe
from tests.support.gguf.recent import granite_keys


def _ssm_keys(config: Fields) -> Fields:
    """set_gguf_parameters of MambaModel, Mamba2Model, NemotronHModel and FalconH1Model."""

    def first(*names: str) -> int | None:
        return next((config[name] for name in names if config.get(name)), None)

    heads = first("mamba_num_heads", "mamba_n_heads", "num_heads")
    width = first("mamba_d_ssm", "intermediate_size")
    if config["model_type"] in ("nemotron_h", "mamba2"):
        width = heads * first("mamba_head_dim", "head_dim")
    return {
        **common_keys(config),
        "block_count": config.get("num_hidden_layers") or len(config["layers_block_type"]),
        "attention.layer_norm_rms_epsilon": first("rms_norm_eps", "layer_norm_epsilon"),
        "rope.freq_base": config.get("rope_parameters", {}).get("rope_theta"),
        "ssm.conv_kernel": first("conv_kernel", "mamba_d_conv"),
        "ssm.inner_size": width,
        "ssm.state_size": first("state_size", "ssm_state_size", "mamba_d_state"),
        "ssm.time_step_rank": heads or config["time_step_rank"],
        "ssm.group_count": first("n_groups", "mamba_n_groups"),
        "ssm.dt_b_c_rms": config["model_type"] == "falcon_mamba" or None,
    }


def _only_ssm_keys(config: Fields) -> Fields:
    """MambaModel and Mamba2Model.set_gguf_parameters: sizes that models have without them."""
    return {
        **_ssm_keys(config),
        "context_length": 2**20,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.key_length": None,
        "attention.value_length": None,
    }


def _nemotron_h_keys(config: Fields) -> Fields:
    """NemotronHModel.set_gguf_parameters: sizes for each layer, 0 where it has no such part."""
    kinds = config["layers_block_type"]
    heads, width = config["num_key_value_heads"], config["intermediate_size"]
    return {
        **_ssm_keys(config),
        "attention.head_count_kv": [heads * (kind == "full_attention") for kind in kinds],
        "feed_forward_length": [width * (kind in ("mlp", "moe")) for kind in kinds],
        "expert_count": config["n_routed_experts"] if "moe" in kinds else None,
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
    }


def _ssm(config: Fields, tensors: Fields) -> Tensors:
    """modify_tensors of the same models: decays, and dimensions that are added or left out."""
    has_heads = config["model_type"] not in ("mamba", "falcon_mamba")
    groups = config.get("n_groups", config.get("mamba_n_groups"))
    for name, array in experts(tensors, "mixer.experts", ("up_proj", "down_proj")):
        name = (
            name.replace("mixer.experts", "mlp.experts").replace("backbone.", "model.")
            if ("mixer.experts" in name)
            else name
        )
        name = name.replace("_correction_bias", "_correction.bias")
        if name.endswith("A_log"):
            array = -np.exp(array)
        if name.endswith(("A_log", ".D")) and has_heads:
            array = array.reshape(-1, 1)
        if name.endswith("conv1d.weight"):
            array = array.squeeze(1)
        if name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
            array = array.reshape(groups, -1)
        yield name.replace("dt_bias", "dt_proj.bias"), array


def _lfm2_keys(config: Fields) -> Fields:
    """LFM2Model and LFM2MoeModel.set_gguf_parameters."""
    heads = config["num_key_value_heads"]
    return {
        **common_keys(config),
        "attention.head_count_kv": [heads * (each != "conv") for each in config["layer_types"]],
        "attention.layer_norm_rms_epsilon": config["norm_eps"],
        "shortconv.l_cache": config["conv_L_cache"],
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "leading_dense_block_count": config.get("num_dense_layers"),
        "expert_weights_scale": config.get("routed_scaling_factor"),
        "expert_gating_func": 2 if "num_dense_layers" in config else None,
    }


def _lfm2(config: Fields, tensors: Fields) -> Tensors:
    """LFM2Model and LFM2MoeModel.modify_tensors: merges experts, conv without a dimension."""
    for name, array in experts(tensors, "feed_forward.experts", ("w1", "w2", "w3")):
        for ours, theirs in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            name = name.replace(f"feed_forward.experts.{ours}", f"mlp.experts.{theirs}")
        array = array.squeeze(1) if name.endswith("conv.conv.weight") else array
        yield name.replace("expert_bias", "expert_bias.bias"), array


def _granite_hybrid_keys(config: Fields) -> Fields:
    """GraniteHybridModel.set_gguf_parameters, of a model with rotation."""
    heads = config["num_key_value_heads"]
    attends = [each == "full_attention" for each in config["layer_types"]]
    return {
        **_ssm_keys(config),
        **granite_keys(config),
        "attention.head_count_kv": [heads * each for each in attends],
        "expert_shared_feed_forward_length": config["shared_intermediate_size"],
        "rope.scaling.finetuned": config["position_embedding_type"] == "rope",
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
    }


def _granite_hybrid(config: Fields, tensors: Fields) -> Tensors:
    """GraniteHybridModel.modify_tensors: also separates gate and up of the shared expert."""
    for name, array in _ssm(config, dict(granite_moe(config, tensors))):
        if not name.endswith("shared_mlp.input_linear.weight"):
            yield name, array
            continue
        here = name.replace("shared_mlp.input_linear", "mlp.shared_expert.{}_proj")
        for kind, half in zip(("gate", "up"), np.split(array, 2), strict=True):
            yield here.format(kind), half


def _jamba_keys(config: Fields) -> Fields:
    """JambaModel.set_gguf_parameters: no rotation."""
    count, period = config["num_hidden_layers"], config["attn_layer_period"]
    attends = [i % period == config["attn_layer_offset"] for i in range(count)]
    return {
        **common_keys(config),
        "attention.head_count_kv": [config["num_key_value_heads"] * each for each in attends],
        "rope.freq_base": None,
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.time_step_rank": config["mamba_dt_rank"],
    }


def _jamba(config: Fields, tensors: Fields) -> Tensors:
    """JambaModel.modify_tensors: merges experts, decays, conv without a dimension."""
    kinds = ("gate_proj", "up_proj", "down_proj")
    for name, array in experts(tensors, "feed_forward.experts", kinds):
        if name.endswith("A_log"):
            array = -np.exp(array)
        if name.endswith("conv1d.weight"):
            array = array.squeeze(1)
        yield name.replace("feed_forward.experts", "mlp.experts"), array


def _delta_keys(config: Fields) -> Fields:
    """Qwen3NextModel.set_gguf_parameters."""
    heads = config["linear_num_value_heads"]
    return {
        **common_keys(config),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * config["linear_value_head_dim"],
        "full_attention_interval": 4,
        "rope.dimension_count": rotated(config, 0.25),
    }


def _delta(config: Fields, tensors: Fields) -> Tensors:
    """Qwen3NextModel.modify_tensors: decays, norms with 1 added, projections by kind."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_dim, each = config["linear_key_head_dim"], config["linear_value_head_dim"]
    each = each * values // keys
    for name, array in qwen3moe(config, tensors):
        if name.endswith("A_log"):
            array = -np.exp(array)
        if name.endswith("conv1d.weight"):
            array = array.squeeze(1)
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            array = array + np.float32(1)
        if not name.endswith("in_proj_qkvz.weight"):
            yield name.replace("dt_bias", "dt_proj.bias"), array
            continue
        by_head = array.reshape(keys, -1, array.shape[1])
        kinds = np.split(by_head, [key_dim, 2 * key_dim, 2 * key_dim + each], axis=1)
        rows = [kind.reshape(-1, array.shape[1]) for kind in kinds]
        layer = name.split(".")[2]
        yield f"blk.{layer}.attn_qkv.weight", np.concatenate(rows[:3])
        yield f"blk.{layer}.attn_gate.weight", rows[3]


def _delta_in_turns(config: Fields, tensors: Fields) -> Tensors:
    """_LinearAttentionVReorderBase.modify_tensors: the value heads of all key heads in turns."""
    keys, width = config["linear_num_key_heads"], config["linear_value_head_dim"]
    start = 2 * keys * config["linear_key_head_dim"]

    def in_turns(array: np.ndarray, size: int) -> np.ndarray:
        by_head = array.reshape(keys, -1, size, *array.shape[1:])
        return by_head.swapaxes(0, 1).reshape(array.shape)

    changed = {}
    for name, array in tensors.items():
        if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
            array = np.concatenate([array[:start], in_turns(array[start:], width)])
        elif name.endswith("in_proj_z.weight"):
            array = in_turns(array, width)
        elif name.endswith(("in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_bias")):
            array = in_turns(array, 1)
        elif name.endswith("linear_attn.out_proj.weight"):
            array = in_turns(array.T, width).T
        changed[name] = array
    yield from _delta(config, changed)


MIXER_ARCHS: dict[str, Converter] = {
    "granitehybrid": (_granite_hybrid_keys, _granite_hybrid),
    "lfm2": (_lfm2_keys, _lfm2),
    "lfm2moe": (_lfm2_keys, _lfm2),
    "nemotron_h": (_nemotron_h_keys, _ssm),
    "nemotron_h_moe": (_nemotron_h_keys, _ssm),
    "falcon-h1": (_ssm_keys, _ssm),
    "jamba": (_jamba_keys, _jamba),
    "qwen3next": (_delta_keys, _delta),
    "qwen35": (_delta_keys, _delta_in_turns),
    "qwen35moe": (_delta_keys, _delta_in_turns),
    "mamba": (_only_ssm_keys, _ssm),
    "mamba2": (_only_ssm_keys, _ssm),
}
