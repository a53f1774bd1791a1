"""Mixture-of-experts models: Mixtral and GPT-OSS; Qwen's are in `qwen`.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.architecture import (
    SEPARATE_GATE_UP,
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.fields import (
    MAX_EXPERTS,
    MAX_WIDTH,
    Fields,
    flag,
    integer,
    invalid,
    num_layers,
    number,
)


def moe_overrides(config: Fields) -> Mapping[str, Any]:
    """Return the fields that all mixture-of-experts models read."""
    experts = integer(config, "num_local_experts", 1, MAX_EXPERTS)
    return {
        "attention_bias": False,
        "mlp_bias": False,
        "num_experts": experts,
        "expert_size": integer(config, "intermediate_size", 1, MAX_WIDTH),
        "experts_per_token": integer(config, "num_experts_per_tok", 1, experts),
        "normalized_experts": True,
    }


def _gpt_oss(config: Fields) -> Mapping[str, Any]:
    # The activation of the experts depends on it, not on `hidden_act`.
    alpha = number(config, "swiglu_alpha", above=0.0, below=1e3)
    if alpha != 1.702:
        raise invalid("swiglu_alpha", "1.702", alpha)
    kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(num_layers(config))]
    return {
        **moe_overrides(config),
        "attention_bias": flag(config, "attention_bias"),
        "attention_sinks": True,
        "expert_bias": True,
        "activation": "gelu_sigmoid",
        "interleaved_gate": True,
        "gate_limit": number(config, "swiglu_limit", above=0.0, below=1e6),
        "layer_types": kinds,
    }


MOE: Mapping[str, Architecture] = {
    "MixtralForCausalLM": Architecture(
        name="mixtral",
        model_type="mixtral",
        overrides=moe_overrides,
        supported_keys=frozenset({"num_local_experts"}),
        tensors=llama_tensors(
            {
                "router": "block_sparse_moe.gate.weight",
                "expert_gate": "block_sparse_moe.experts.{e}.w1.weight",
                "expert_up": "block_sparse_moe.experts.{e}.w3.weight",
                "expert_down": "block_sparse_moe.experts.{e}.w2.weight",
            },
            without=("gate", "up", "down"),
        ),
        defaults=frozen(
            max_position_embeddings=4096 * 32,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            rope_theta=1e6,
            num_local_experts=8,
            num_experts_per_tok=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "GptOssForCausalLM": Architecture(
        name="gpt_oss",
        model_type="gpt_oss",
        overrides=_gpt_oss,
        supported_keys=frozenset({"num_local_experts"}),
        tensors=llama_tensors(
            {
                "sinks": "self_attn.sinks",
                "router": "mlp.router.weight",
                "router_bias": "mlp.router.bias",
                "experts_gate_up": "mlp.experts.gate_up_proj",
                "experts_gate_up_bias": "mlp.experts.gate_up_proj_bias",
                "experts_down": "mlp.experts.down_proj",
                "experts_down_bias": "mlp.experts.down_proj_bias",
            },
            without=(*SEPARATE_GATE_UP, "down"),
        ),
        transposed=frozenset({"experts_gate_up", "experts_down"}),
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            head_dim=64,
            sliding_window=128,
            attention_bias=True,
            num_local_experts=128,
            num_experts_per_tok=4,
            swiglu_alpha=1.702,
            swiglu_limit=7.0,
            rope_theta=150_000.0,
            rope_scaling=frozen(
                rope_type="yarn",
                factor=32.0,
                beta_fast=32.0,
                beta_slow=1.0,
                truncate=False,
                original_max_position_embeddings=4096,
            ),
        ),
    ),
}
