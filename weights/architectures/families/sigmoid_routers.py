"""Mixtures of experts with DeepSeek-V3's router or a similar one: GLM-4.5, MiniMax M2 and others.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.gemma import every_nth_full
from swiftchat.weights.architectures.families.llama_like import exaone4
from swiftchat.weights.architectures.families.moe import (
    MIXTRAL_EXPERTS,
    MOE_KEYS,
    SHARED_EXPERTS,
    SHARED_MLP,
    experts_of_width,
    listed_dense,
    moe_overrides,
)
from swiftchat.weights.architectures.families.qwen import EXPERTS
from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    MAX_LAYERS,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    layer_types,
    num_layers,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.router import RouterConfig

_EPS = 1e-20


def sigmoid_router(config: Fields, *, normalized: bool, scale: str) -> RouterConfig:
    """Return DeepSeek-V3's router."""
    groups = optional_integer(config, "n_group", 1, MAX_EXPERTS) or 1
    if integer(config, "num_local_experts", 1, MAX_EXPERTS) % groups:
        raise invalid("n_group", "a divisor of the number of experts", groups)
    top_groups = optional_integer(config, "topk_group", 1, groups) or 1
    candidates = top_groups * integer(config, "num_local_experts", 1, MAX_EXPERTS) // groups
    if candidates < integer(config, "num_experts_per_tok", 1, MAX_EXPERTS):
        raise invalid("topk_group", "groups with enough experts for each token", top_groups)
    return RouterConfig(
        "sigmoid",
        correction=True,
        groups=groups,
        top_groups=top_groups,
        normalized=normalized,
        eps=_EPS,
        scale=number(config, scale, above=0.0, below=1e6, default=1.0),
    )


def first_dense(config: Fields, name: str) -> frozenset[int]:
    """Return the first layers; the key `name` is their number."""
    return frozenset(range(integer(config, name, 0, MAX_LAYERS)))


def glm4_moe(config: Fields) -> Mapping[str, Any]:
    """Return the fields of GLM-4.5 and Ling 2.0."""
    router = sigmoid_router(
        config, normalized=flag(config, "norm_topk_prob"), scale="routed_scaling_factor"
    )
    return {
        **experts_of_width(config, router, "n_shared_experts"),
        "dense_layers": first_dense(config, "first_k_dense_replace"),
        "qk_norm": "head" if flag(config, "use_qk_norm") else None,
    }


def _dots1(config: Fields) -> Mapping[str, Any]:
    late = integer(config, "max_window_layers", 0, MAX_LAYERS)
    kinds = [
        "sliding_attention" if i >= late else "full_attention" for i in range(num_layers(config))
    ]
    windowed = config.get("sliding_window") is not None
    bias = flag(config, "attention_bias")
    return {
        **glm4_moe(config),
        "qk_norm": "head",
        "output_bias": bias,
        "layer_types": kinds if windowed else None,
    }


def _exaone_moe(config: Fields) -> Mapping[str, Any]:
    router = sigmoid_router(
        config, normalized=flag(config, "norm_topk_prob"), scale="routed_scaling_factor"
    )
    return {
        **experts_of_width(config, router, "num_shared_experts"),
        **exaone4(config),
        "dense_layers": listed_dense(
            config, integer(config, "first_k_dense_replace", 0, MAX_LAYERS)
        ),
    }


def _hy_v3(config: Fields) -> Mapping[str, Any]:
    router = sigmoid_router(config, normalized=True, scale="router_scaling_factor")
    return {
        **experts_of_width(config, router, "num_shared_experts"),
        "output_bias": flag(config, "attention_bias"),
        "qk_norm": "head",
        "dense_layers": listed_dense(config, 1),
    }


def _minimax_m2(config: Fields) -> Mapping[str, Any]:
    return {
        **moe_overrides(config),
        "qk_norm": "width",
        "router": RouterConfig("sigmoid", correction=True, normalized=True),
    }


def _afmoe(config: Fields) -> Mapping[str, Any]:
    kinds = layer_types(config)
    if kinds is None:
        pattern = integer(config, "global_attn_every_n_layers", 1, MAX_LAYERS)
        kinds = every_nth_full(config, pattern)
    router = RouterConfig(
        "sigmoid",
        correction=True,
        normalized=True,
        eps=_EPS,
        scale=number(config, "route_scale", above=0.0, below=1e6),
    )
    return {
        **experts_of_width(config, router, "num_shared_experts"),
        "output_bias": flag(config, "attention_bias"),
        "norm_order": "sandwich",
        "qk_norm": "head",
        "attention_gate": True,
        "layer_types": kinds,
        "unrotated_layers": frozenset(i for i, k in enumerate(kinds) if k == "full_attention"),
        "dense_layers": first_dense(config, "num_dense_layers"),
        "embedding_scale": hidden_size(config) ** 0.5 if flag(config, "mup_enabled") else 1.0,
    }


_CORRECTION = frozen(router_correction="mlp.gate.e_score_correction_bias")

_GLM_TENSORS = llama_tensors({**EXPERTS, **SHARED_EXPERTS, **_CORRECTION})

_GLM_DEFAULTS = frozen(
    max_position_embeddings=131_072,
    rms_norm_eps=1e-5,
    num_key_value_heads=8,
    moe_intermediate_size=1408,
    num_local_experts=128,
    num_experts_per_tok=8,
    n_shared_experts=1,
    norm_topk_prob=True,
)

SIGMOID_ROUTERS: Mapping[str, Architecture] = {
    "Glm4MoeForCausalLM": Architecture(
        name="glm4_moe",
        model_type="glm4_moe",
        overrides=glm4_moe,
        supported_keys=MOE_KEYS | {"partial_rotary_factor", "use_qk_norm"},
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=_GLM_TENSORS,
        defaults=frozen(
            **_GLM_DEFAULTS,
            intermediate_size=10_944,
            first_k_dense_replace=1,
            partial_rotary_factor=0.5,
        ),
    ),
    "SolarOpenForCausalLM": Architecture(
        name="solar_open",
        model_type="solar_open",
        overrides=glm4_moe,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=_GLM_TENSORS,
        defaults=frozen(
            **{**_GLM_DEFAULTS, "moe_intermediate_size": 1280},
            intermediate_size=1280,
            head_dim=128,
            rope_theta=1e6,
            first_k_dense_replace=0,
        ),
    ),
    "Dots1ForCausalLM": Architecture(
        name="dots1",
        model_type="dots1",
        overrides=_dots1,
        windowed=True,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=_GLM_TENSORS,
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-6,
            num_key_value_heads=32,
            intermediate_size=10_944,
            moe_intermediate_size=1408,
            sliding_window=4096,
            max_window_layers=62,
            first_k_dense_replace=0,
            norm_topk_prob=False,
        ),
    ),
    "ExaoneMoeForCausalLM": Architecture(
        name="exaone_moe",
        model_type="exaone_moe",
        overrides=_exaone_moe,
        windowed=True,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(
            {**EXPERTS, **SHARED_EXPERTS, "router_correction": "mlp.e_score_correction_bias"}
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-5,
            num_key_value_heads=32,
            sliding_window=4096,
            sliding_window_pattern=4,
            moe_intermediate_size=1024,
            num_local_experts=64,
            num_experts_per_tok=8,
            num_shared_experts=1,
            first_k_dense_replace=1,
            routed_scaling_factor=2.5,
            norm_topk_prob=True,
            bos_token_id=1,
            eos_token_id=53,
        ),
    ),
    "HYV3ForCausalLM": Architecture(
        name="hy_v3",
        model_type="hy_v3",
        overrides=_hy_v3,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(
            {
                **EXPERTS,
                **SHARED_MLP,
                "router": "mlp.router.gate.weight",
                "router_correction": "mlp.expert_bias",
            }
        ),
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            head_dim=128,
            num_shared_experts=1,
            num_local_experts=192,
            num_experts_per_tok=8,
            moe_intermediate_size=1536,
            router_scaling_factor=2.826,
            rope_theta=11_158_840.0,
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
    "AfmoeForCausalLM": Architecture(
        name="afmoe",
        model_type="afmoe",
        overrides=_afmoe,
        windowed=True,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(
            {
                **EXPERTS,
                **SHARED_EXPERTS,
                "router": "mlp.router.gate.weight",
                "router_correction": "mlp.expert_bias",
                "attn_gate": "self_attn.gate_proj.weight",
                "attn_out_norm": "post_attention_layernorm.weight",
                "mlp_norm": "pre_mlp_layernorm.weight",
                "mlp_out_norm": "post_mlp_layernorm.weight",
            }
        ),
        defaults=frozen(
            max_position_embeddings=16_384,
            rms_norm_eps=1e-5,
            num_key_value_heads=16,
            head_dim=128,
            sliding_window=1024,
            global_attn_every_n_layers=4,
            num_local_experts=64,
            num_experts_per_tok=6,
            moe_intermediate_size=1408,
            num_dense_layers=1,
            num_shared_experts=2,
            route_scale=1.0,
        ),
    ),
}
