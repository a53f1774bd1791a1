"""MiniMax.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import (
    MIXTRAL_EXPERTS,
    MOE_KEYS,
    moe_overrides,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_HEAD_DIM,
    Fields,
    hidden_size,
    layer_types,
    num_heads,
    num_layers,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.lightning import Lightning
from swiftchat.weights.architectures.parts.mixer_readers import mixer_layers
from swiftchat.weights.architectures.parts.router import RouterConfig


def _minimax(config: Fields) -> Mapping[str, Any]:
    heads, layers = num_heads(config), num_layers(config)
    kinds = layer_types(config)
    if kinds is None:
        kinds = [("full_attention", "linear_attention")[i % 2] for i in range(layers)]
    head_dim = optional_integer(config, "head_dim", 2, MAX_HEAD_DIM) or hidden_size(config) // heads

    def multiplier(name: str) -> float:
        return number(config, f"{name}_factor", above=-1e6, below=1e6, default=1.0)

    experts = moe_overrides(config)
    linear = mixer_layers(config, kinds, "linear_attention")
    return {
        **experts,
        "router": replace(experts["router"], scale=multiplier("mlp_beta")),
        "sliding_window": optional_integer(config, "sliding_window", 1, MAX_CONTEXT),
        "norm_order": "stream",
        "stream_scale": multiplier("full_attn_alpha"),
        "mixer_stream_scale": multiplier("linear_attn_alpha"),
        "mlp_stream_scale": multiplier("mlp_alpha"),
        "attention_out_scale": multiplier("full_attn_beta"),
        "mixer_out_scale": multiplier("linear_attn_beta"),
        "mixer_layers": linear,
        "mixer": Lightning(heads, head_dim, layers, _NORM_EPS) if linear else None,
    }


def _minimax_m2(config: Fields) -> Mapping[str, Any]:
    return {
        **moe_overrides(config),
        "qk_norm": "width",
        "router": RouterConfig("sigmoid", correction=True, normalized=True),
    }


_NORM_EPS = 1e-6  # of the norms inside of lightning attention


MINIMAX: Mapping[str, Architecture] = {
    "MiniMaxForCausalLM": Architecture(
        name="minimax",
        model_type="minimax",
        overrides=_minimax,
        supported_keys=frozenset({"num_local_experts", "num_experts", "sliding_window"}),
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(
            {
                **MIXTRAL_EXPERTS,
                "mixer_qkv": "self_attn.qkv_proj.weight",
                "mixer_z": "self_attn.output_gate.weight",
                "mixer_out": "self_attn.out_proj.weight",
                "mixer_norm": "self_attn.norm.weight",
            }
        ),
        defaults=frozen(
            vocab_size=32_000,
            hidden_size=4096,
            intermediate_size=14_336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            rope_theta=1e6,
            num_local_experts=8,
            num_experts_per_tok=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "MiniMaxM2ForCausalLM": Architecture(
        name="minimax_m2",
        model_type="minimax_m2",
        overrides=_minimax_m2,
        supported_keys=MOE_KEYS | {"rotary_dim", "partial_rotary_factor", "use_qk_norm"},
        tensors=llama_tensors(
            {
                **MIXTRAL_EXPERTS,
                "router_correction": "block_sparse_moe.e_score_correction_bias",
            },
            without=("gate", "up", "down"),
        ),
        defaults=frozen(
            max_position_embeddings=196_608,
            rms_norm_eps=1e-6,
            num_key_value_heads=8,
            head_dim=128,
            rope_theta=5e6,
            num_local_experts=256,
            num_experts_per_tok=8,
            bos_token_id=200_034,
            eos_token_id=200_020,
        ),
    ),
}
