"""MosaicML and Databricks: MPT and DBRX.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    LAYER_NORM_UNGATED,
    Architecture,
    frozen,
    tensor_names,
)
from swiftchat.weights.architectures.parts.expert_readers import MOE_KEYS
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    MAX_WIDTH,
    Fields,
    hidden_size,
    integer,
    invalid,
    mapping,
    num_heads,
    optional_number,
)
from swiftchat.weights.architectures.parts.gpt_readers import mlp_width
from swiftchat.weights.architectures.parts.rope import (
    RopeConfig,
)
from swiftchat.weights.architectures.parts.router import RouterConfig


def _mpt(config: Fields) -> Mapping[str, Any]:
    attention = mapping(config, "attn_config") or {}
    scale = optional_number(attention, "softmax_scale", above=0.0, below=1e6)
    return {
        **LAYER_NORM_UNGATED,
        "norm_bias": False,
        "attention_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "activation": "gelu",
        "num_kv_heads": num_heads(config),
        "intermediate_size": mlp_width(config, None),
        "rope": None,
        "alibi": True,
        "query_scalar": None if scale is None else scale**-2,
        "clip_qkv": optional_number(attention, "clip_qkv", above=0.0, below=1e6),
    }


def _dbrx(config: Fields) -> Mapping[str, Any]:
    attention = mapping(config, "attn_config") or {}
    experts = {"moe_num_experts": 4, "moe_top_k": 1, "ffn_hidden_size": 3584}
    experts |= mapping(config, "ffn_config") or {}
    count, width = "moe_num_experts", integer(experts, "ffn_hidden_size", 1, MAX_WIDTH)
    normalized = experts.get("moe_normalize_expert_weights", 1.0)
    if normalized not in (None, 1):
        raise invalid("moe_normalize_expert_weights", "1 or null", normalized)
    kv_heads = integer({"kv_n_heads": 1, **attention}, "kv_n_heads", 1, num_heads(config))
    if num_heads(config) % kv_heads:
        raise invalid("kv_n_heads", f"a divisor of {num_heads(config)} heads", kv_heads)
    activation = mapping(experts, "ffn_act_fn") or {}
    if activation.get("name", "silu") != "silu":
        raise invalid("ffn_act_fn", "silu", activation.get("name"))
    rope = dict(config)
    if not (config.get("rope_parameters") or config.get("rope_scaling")):
        rope["rope_theta"] = attention.get("rope_theta", config.get("rope_theta", 10_000.0))
    return {
        "attention_bias": False,
        "mlp_bias": False,
        "norm": "layer",
        "norm_eps": 1e-5,
        "activation": "silu",
        "num_kv_heads": kv_heads,
        "clip_qkv": optional_number(attention, "clip_qkv", above=0.0, below=1e6),
        "rope": RopeConfig.from_hf(rope, hidden_size(config) // num_heads(config)),
        "intermediate_size": width,
        "num_experts": integer(experts, count, 1, MAX_EXPERTS),
        "expert_size": width,
        "experts_per_token": integer(experts, "moe_top_k", 1, integer(experts, count, 1, 2**16)),
        "router": RouterConfig(normalized=normalized is not None),
    }


DATABRICKS: Mapping[str, Architecture] = {
    "MptForCausalLM": Architecture(
        name="mpt",
        model_type="mpt",
        overrides=_mpt,
        renamed=frozen(
            hidden_size="d_model",
            num_hidden_layers="n_layers",
            num_attention_heads="n_heads",
            max_position_embeddings="max_seq_len",
            rms_norm_eps="layer_norm_epsilon",
        ),
        prefix="transformer.",
        tensors=tensor_names(
            {
                "qkv": "attn.Wqkv.weight",
                "o": "attn.out_proj.weight",
                "up": "ffn.up_proj.weight",
                "down": "ffn.down_proj.weight",
                "attn_norm": "norm_1.weight",
                "mlp_norm": "norm_2.weight",
            },
            embed="transformer.wte.weight",
            final_norm="transformer.norm_f.weight",
            lm_head="lm_head.weight",
            layer="transformer.blocks.{i}.",
        ),
        defaults=frozen(max_seq_len=2048, layer_norm_epsilon=1e-5, tie_word_embeddings=True),
    ),
    "DbrxForCausalLM": Architecture(
        name="dbrx",
        model_type="dbrx",
        overrides=_dbrx,
        renamed=frozen(
            hidden_size="d_model",
            num_attention_heads="n_heads",
            num_hidden_layers="n_layers",
            max_position_embeddings="max_seq_len",
        ),
        supported_keys=MOE_KEYS,
        prefix="transformer.",
        tensors=tensor_names(
            {
                "qkv": "norm_attn_norm.attn.Wqkv.weight",
                "o": "norm_attn_norm.attn.out_proj.weight",
                "attn_norm": "norm_attn_norm.norm_1.weight",
                "mlp_norm": "norm_attn_norm.norm_2.weight",
                "router": "ffn.router.layer.weight",
                "experts_gate": "ffn.experts.mlp.w1",
                "experts_up": "ffn.experts.mlp.v1",
                "experts_down": "ffn.experts.mlp.w2",
            },
            embed="transformer.wte.weight",
            final_norm="transformer.norm_f.weight",
            lm_head="lm_head.weight",
            layer="transformer.blocks.{i}.",
        ),
        defaults=frozen(max_seq_len=2048),
    ),
}
