"""LG: EXAONE.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERTS,
    experts_of_width,
    listed_dense,
    sigmoid_router,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_LAYERS,
    Fields,
    flag,
    integer,
    layer_types,
)
from swiftchat.weights.architectures.parts.layer_readers import OUTPUT_NORMS, every_nth_full
from swiftchat.weights.architectures.parts.variants import TypeVariant


def exaone4(config: Fields) -> Mapping[str, Any]:
    """Return the overrides of EXAONE 4's attention: only layers with a window are rotated."""
    windowed = config.get("sliding_window") is not None
    kinds = layer_types(config)
    if kinds is None:
        pattern = integer(config, "sliding_window_pattern", 1, MAX_LAYERS) if windowed else 1
        kinds = every_nth_full(config, pattern)
    full = frozenset(i for i, kind in enumerate(kinds) if kind == "full_attention")
    return {
        "attention_bias": False,
        "mlp_bias": False,
        "qk_norm": "head",
        "layer_types": kinds,
        "unrotated_layers": full if windowed else frozenset(),
    }


def _exaone4(config: Fields) -> Mapping[str, Any]:
    return {**exaone4(config), "norm_order": "output"}


def _exaone(config: Fields) -> Mapping[str, Any]:
    return {"attention_bias": False, "mlp_bias": False}


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


LG: Mapping[str, Architecture] = {
    "Exaone4ForCausalLM": Architecture(
        name="exaone4",
        model_type="exaone4",
        overrides=_exaone4,
        windowed=True,
        tensors=llama_tensors(OUTPUT_NORMS),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-5,
            num_key_value_heads=32,
            sliding_window=4096,
            sliding_window_pattern=4,
            bos_token_id=0,
            eos_token_id=2,
        ),
    ),
    "ExaoneForCausalLM": Architecture(
        name="exaone",
        model_type="exaone",
        overrides=_exaone,
        renamed=frozen(
            num_hidden_layers="num_layers",
            rms_norm_eps="layer_norm_epsilon",
            hidden_act="activation_function",
        ),
        prefix="transformer.",
        tensors=tensor_names(
            {
                "q": "attn.attention.q_proj.weight",
                "k": "attn.attention.k_proj.weight",
                "v": "attn.attention.v_proj.weight",
                "o": "attn.attention.out_proj.weight",
                "gate": "mlp.c_fc_0.weight",
                "up": "mlp.c_fc_1.weight",
                "down": "mlp.c_proj.weight",
                "attn_norm": "ln_1.weight",
                "mlp_norm": "ln_2.weight",
            },
            embed="transformer.wte.weight",
            final_norm="transformer.ln_f.weight",
            lm_head="lm_head.weight",
            layer="transformer.h.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            layer_norm_epsilon=1e-6,
            activation_function="silu",
            bos_token_id=0,
            eos_token_id=2,
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
}

LG_VARIANTS = (
    TypeVariant(
        "LlamaForCausalLM",
        "exaone",
        renamed=frozen(
            num_hidden_layers="num_layers",
            rms_norm_eps="layer_norm_epsilon",
            hidden_act="activation_function",
        ),
        defaults=frozen(
            max_position_embeddings=4096,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            rope_theta=500_000.0,
            eos_token_id=361,
        ),
    ),
)
