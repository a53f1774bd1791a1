"""Vendors with one mixture of experts.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.lg import exaone4
from swiftchat.weights.architectures.families.zhipu import GLM_DEFAULTS, GLM_TENSORS, glm4_moe
from swiftchat.weights.architectures.parts.architecture import (
    SEPARATE_GATE_UP,
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERT,
    SHARED_EXPERTS,
    experts_of_width,
    listed_dense,
    moe_overrides,
    sparse_dense_layers,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
    flag,
    integer,
    invalid,
    layer_types,
    num_layers,
)
from swiftchat.weights.architectures.parts.layer_readers import every_nth_full
from swiftchat.weights.architectures.parts.rope import (
    layer_ropes,
)
from swiftchat.weights.architectures.parts.router import RouterConfig
from swiftchat.weights.architectures.parts.variants import TypeVariant


def _aria(config: Fields) -> Mapping[str, Any]:
    if config.get("hidden_act", "silu") != "silu":  # the routed experts have it in any case
        raise invalid("hidden_act", "silu", config.get("hidden_act"))
    if flag(config, "mlp_bias"):
        raise invalid("mlp_bias", "false", True)
    width = integer(config, "intermediate_size", 1, MAX_WIDTH)
    shared = integer(config, "moe_num_shared_experts", 0, MAX_EXPERTS)
    bias = flag(config, "attention_bias")
    return {**moe_overrides(config), "attention_bias": bias, "shared_expert_size": shared * width}


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


def _mellum(config: Fields) -> Mapping[str, Any]:
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    ropes = config.get("rope_parameters") or _MELLUM_ROPES
    fields = {"max_position_embeddings": config.get("max_position_embeddings")}
    router = RouterConfig(normalized=flag(config, "norm_topk_prob"))
    return {
        **experts_of_width(config, router, None),
        "output_bias": flag(config, "attention_bias"),
        "qk_norm": "head",
        **layer_ropes({**fields, "rope_parameters": ropes}, head_dim, 1e4),
        "layer_types": ["full_attention"] * num_layers(config),
        "dense_layers": listed_dense(config, 0),
    }


def _shared_size(config: Fields) -> int:
    return integer(config, "shared_expert_intermediate_size", 0, MAX_WIDTH)


def _kolibri(config: Fields) -> Mapping[str, Any]:
    kinds = layer_types(config)
    config = {**config, "layer_types": every_nth_full(config, 5) if kinds is None else kinds}
    normalized = flag(config, "norm_topk_prob")
    router = RouterConfig("sigmoid", correction=True, by_logits=True, normalized=normalized)
    return {
        **experts_of_width(config, router, None),
        **exaone4(config),
        "intermediate_size": integer(config, "moe_intermediate_size", 1, MAX_WIDTH),
        "norm_order": "sandwich",
        "shared_expert_size": _shared_size(config),
    }


def _flint(config: Fields) -> Mapping[str, Any]:
    count, kinds = num_layers(config), layer_types(config)
    if kinds is None:
        full = {i for i in range(count) if i < 2 or i % 4 == 1} | {count - 1}
        kinds = ["full_attention" if i in full else "sliding_attention" for i in range(count)]
    if config.get("mlp_only_layers") is None:
        config = {**config, "mlp_only_layers": [i for i in (0, 1) if i < count]}
    router = RouterConfig("sigmoid", normalized=flag(config, "norm_topk_prob"))
    return {
        **experts_of_width(config, router, None),
        "qk_norm": "head",
        "attention_sinks": True,
        "output_bias": flag(config, "attention_bias"),
        "layer_types": kinds,
        "unrotated_layers": frozenset(i for i, k in enumerate(kinds) if k == "full_attention"),
        "dense_layers": sparse_dense_layers(config),
        "shared_expert_size": _shared_size(config),
    }


_MELLUM_ROPES = frozen(
    full_attention=frozen(rope_theta=5e5), sliding_attention=frozen(rope_theta=1e4)
)


OTHER_EXPERTS: Mapping[str, Architecture] = {
    "AriaTextForCausalLM": Architecture(
        name="aria",
        model_type="aria_text",
        overrides=_aria,
        supported_keys=frozenset({"num_local_experts"}),
        renamed=frozen(num_local_experts="moe_num_experts", num_experts_per_tok="moe_topk"),
        tensors=llama_tensors(
            {
                **SHARED_EXPERTS,
                "router": "mlp.router.weight",
                "experts_gate_up": "mlp.experts.fc1.weight",
                "experts_down": "mlp.experts.fc2.weight",
            },
            without=(*SEPARATE_GATE_UP, "down"),
        ),
        transposed=frozenset({"experts_gate_up", "experts_down"}),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-6,
            intermediate_size=4096,
            moe_num_experts=8,
            moe_topk=2,
            moe_num_shared_experts=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "SolarOpenForCausalLM": Architecture(
        name="solar_open",
        model_type="solar_open",
        overrides=glm4_moe,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=GLM_TENSORS,
        defaults=frozen(
            **{**GLM_DEFAULTS, "moe_intermediate_size": 1280},
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
        tensors=GLM_TENSORS,
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
    "MellumForCausalLM": Architecture(
        name="mellum",
        model_type="mellum",
        overrides=_mellum,
        windowed=True,
        supported_keys=MOE_KEYS,
        tensors=llama_tensors(EXPERTS),
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-6,
            num_key_value_heads=4,
            head_dim=128,
            sliding_window=1024,
            num_local_experts=64,
            num_experts_per_tok=8,
            moe_intermediate_size=896,
            norm_topk_prob=True,
        ),
    ),
    "Kolibri1ForCausalLM": Architecture(
        name="kolibri1",
        model_type="kolibri1",
        overrides=_kolibri,
        windowed=True,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(
            {
                **EXPERTS,
                **SHARED_EXPERTS,
                "router_correction": "moe.router.expert_bias",
                "attn_out_norm": "post_attn_norm.weight",
                "mlp_out_norm": "post_ffn_norm.weight",
            }
        ),
        defaults=frozen(
            max_position_embeddings=262_144,
            rms_norm_eps=1e-6,
            num_key_value_heads=4,
            head_dim=128,
            sliding_window=513,
            num_local_experts=384,
            num_experts_per_tok=6,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
            norm_topk_prob=False,
        ),
    ),
    "FlintForCausalLM": Architecture(
        name="flint",
        model_type="flint",
        overrides=_flint,
        windowed=True,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors({**EXPERTS, **SHARED_EXPERT, "sinks": "self_attn.softmax_offset"}),
        defaults=frozen(
            max_position_embeddings=262_144,
            rms_norm_eps=1e-6,
            num_key_value_heads=4,
            head_dim=128,
            sliding_window=513,
            decoder_sparse_step=1,
            num_local_experts=256,
            num_experts_per_tok=6,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=1024,
            norm_topk_prob=True,
        ),
    ),
}

OTHER_EXPERTS_VARIANTS = (
    TypeVariant(
        "Glm4MoeForCausalLM",
        "sarvam_moe",
        renamed=frozen(
            num_local_experts="n_routed_experts",
            n_routed_experts="num_experts",
            n_shared_experts="num_shared_experts",
            attention_bias="use_qkv_bias",
        ),
        defaults=frozen(
            intermediate_size=8192,
            moe_intermediate_size=1024,
            num_key_value_heads=4,
            head_dim=64,
            num_experts_per_tok=6,
            routed_scaling_factor=2.5,
            rms_norm_eps=1e-6,
            rope_theta=8_000_000.0,
            partial_rotary_factor=1.0,
            use_qk_norm=True,
            eos_token_id=1,
        ),
    ),
    TypeVariant(
        "DeepseekV3ForCausalLM",
        "sarvam_mla",
        defaults=frozen(
            num_key_value_heads=64,
            n_routed_experts=128,
            q_lora_rank=None,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
        ),
    ),
)
