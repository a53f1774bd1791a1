"""Mixture-of-experts models: Mixtral and GPT-OSS; Qwen's are in `qwen`.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    SEPARATE_GATE_UP,
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_WIDTH,
    Fields,
    flag,
    integer,
    invalid,
    num_layers,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.rope import RopeConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def moe_overrides(config: Fields) -> Mapping[str, Any]:
    """Return the fields that all mixture-of-experts models read."""
    experts = integer(config, "num_local_experts", 1, MAX_EXPERTS)
    return {
        "attention_bias": False,
        "mlp_bias": False,
        "num_experts": experts,
        "expert_size": integer(config, "intermediate_size", 1, MAX_WIDTH),
        "experts_per_token": integer(config, "num_experts_per_tok", 1, experts),
        "router": RouterConfig(normalized=True),
    }


def experts_of_width(config: Fields, router: RouterConfig, shared: str | None) -> dict[str, Any]:
    """Return the fields of experts of `moe_intermediate_size`; `shared` is the key of a count."""
    width = integer(config, "moe_intermediate_size", 1, MAX_WIDTH)
    count = 0 if shared is None else optional_integer(config, shared, 0, MAX_EXPERTS) or 0
    return {
        **moe_overrides({**config, "intermediate_size": width}),
        "attention_bias": flag(config, "attention_bias"),
        "output_bias": False,
        "shared_expert_size": count * width,
        "router": router,
    }


def listed_dense(config: Fields, default: int) -> frozenset[int]:
    """Return the layers with a plain MLP: those of `mlp_layer_types`, or the first ones."""
    kinds, count = config.get("mlp_layer_types"), num_layers(config)
    if kinds is None:
        return frozenset(range(min(default, count)))
    known = ("dense", "sparse")
    if not isinstance(kinds, list) or len(kinds) != count or any(k not in known for k in kinds):
        raise invalid("mlp_layer_types", f"a list of {count} names", kinds)
    return frozenset(i for i, kind in enumerate(kinds) if kind == "dense")


SHARED_EXPERTS = frozen(
    shared_gate="mlp.shared_experts.gate_proj.weight",
    shared_up="mlp.shared_experts.up_proj.weight",
    shared_down="mlp.shared_experts.down_proj.weight",
)
SHARED_MLP = frozen(
    shared_gate="mlp.shared_mlp.gate_proj.weight",
    shared_up="mlp.shared_mlp.up_proj.weight",
    shared_down="mlp.shared_mlp.down_proj.weight",
)
MIXTRAL_EXPERTS = frozen(
    router="block_sparse_moe.gate.weight",
    expert_gate="block_sparse_moe.experts.{e}.w1.weight",
    expert_up="block_sparse_moe.experts.{e}.w3.weight",
    expert_down="block_sparse_moe.experts.{e}.w2.weight",
)
MOE_KEYS = frozenset(
    {"num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"}
)
_GPT_OSS_ROPE = frozen(
    rope_type="yarn",
    factor=32.0,
    beta_fast=32.0,
    beta_slow=1.0,
    truncate=False,
    original_max_position_embeddings=4096,
)


def _gpt_oss(config: Fields) -> Mapping[str, Any]:
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    if config.get("rope_parameters") is None:
        config = {**config, "rope_parameters": _GPT_OSS_ROPE}
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
        "rope": RopeConfig.from_hf(config, head_dim),
        "gate_limit": number(config, "swiglu_limit", above=0.0, below=1e6),
        "layer_types": kinds,
    }


MOE: Mapping[str, Architecture] = {
    "MixtralForCausalLM": Architecture(
        name="mixtral",
        model_type="mixtral",
        windowed=True,
        same_windows=True,
        overrides=moe_overrides,
        supported_keys=frozenset({"num_local_experts"}),
        tensors=llama_tensors(
            MIXTRAL_EXPERTS,
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
        windowed=True,
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
        ),
    ),
}
