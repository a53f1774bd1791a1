"""Granite 3 and its mixtures of experts, HyperCLOVA X, Command R and R7B: models with multipliers.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.gemma import every_nth_full
from swiftchat.weights.architectures.families.moe import moe_overrides
from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    SEPARATE_GATE_UP,
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
    flag,
    integer,
    invalid,
    layer_types,
    number,
)

MULTIPLIERS = frozenset(
    {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"}
)


def _multiplier(config: Fields, name: str) -> float:
    return number(config, name, above=0.0, below=1e6, default=1.0)


def granite(config: Fields) -> Mapping[str, Any]:
    """Return the overrides of the multipliers."""
    residual = _multiplier(config, "residual_multiplier")
    return {
        "query_scalar": _multiplier(config, "attention_multiplier") ** -2,
        "embedding_scale": _multiplier(config, "embedding_multiplier"),
        "residual_scale": residual,
        "norm_eps": number(config, "rms_norm_eps", above=0.0, below=1.0) / residual**2,
        "logit_scale": 1 / _multiplier(config, "logits_scaling"),
    }


def _granite_moe(config: Fields) -> Mapping[str, Any]:
    return {
        **granite(config),
        **moe_overrides(config),
        "attention_bias": flag(config, "attention_bias"),
    }


def granite_moe_shared(config: Fields) -> Mapping[str, Any]:
    """Return the overrides of multipliers and experts, with a shared one."""
    shared = integer(config, "shared_intermediate_size", 0, MAX_WIDTH)
    return {**_granite_moe(config), "shared_expert_size": shared}


def _hyperclovax(config: Fields) -> Mapping[str, Any]:
    overrides = {
        **granite(config),
        "logit_scale": _multiplier(config, "logits_scaling"),
        "norm_order": "sandwich" if flag(config, "use_post_norm") else "pre",
    }
    if config.get("attention_multiplier") is None:
        overrides["query_scalar"] = None
    if overrides["norm_order"] == "sandwich" and overrides["residual_scale"] != 1.0:
        # The norms of branches would need an epsilon of their own.
        raise invalid("residual_multiplier", "1 with use_post_norm", overrides["residual_scale"])
    return overrides


def _cohere(config: Fields) -> Mapping[str, Any]:
    return {
        "mlp_bias": False,
        "norm": "layer",
        "parallel_residual": True,
        "shared_norm": True,
        "qk_norm": "heads" if flag(config, "use_qk_norm") else None,
        "logit_scale": number(config, "logit_scale", above=0.0, below=1e6),
    }


def _cohere2(config: Fields) -> Mapping[str, Any]:
    kinds = layer_types(config)
    if kinds is None:
        kinds = every_nth_full(config, integer(config, "sliding_window_pattern", 1, MAX_LAYERS))
    full = frozenset(i for i, kind in enumerate(kinds) if kind == "full_attention")
    return {**_cohere(config), "layer_types": kinds, "unrotated_layers": full}


GRANITE_DEFAULTS = frozen(
    max_position_embeddings=2048, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2
)
GRANITE_EXPERTS = frozen(
    router="block_sparse_moe.router.layer.weight",
    experts_gate_up="block_sparse_moe.input_linear.weight",
    experts_down="block_sparse_moe.output_linear.weight",
)
SHARED_MLP = frozen(
    shared_gate_up="shared_mlp.input_linear.weight",
    shared_down="shared_mlp.output_linear.weight",
)
WITHOUT_MLP = (*SEPARATE_GATE_UP, "down", "down_bias")

GRANITE_COHERE: Mapping[str, Architecture] = {
    "GraniteForCausalLM": Architecture(
        name="granite",
        model_type="granite",
        overrides=granite,
        supported_keys=MULTIPLIERS,
        tensors=LLAMA_TENSORS,
        defaults=GRANITE_DEFAULTS,
    ),
    "GraniteMoeForCausalLM": Architecture(
        name="granitemoe",
        model_type="granitemoe",
        overrides=_granite_moe,
        supported_keys=MULTIPLIERS | {"num_local_experts"},
        tensors=llama_tensors(GRANITE_EXPERTS, without=WITHOUT_MLP),
        defaults=frozen(**GRANITE_DEFAULTS, num_local_experts=8, num_experts_per_tok=2),
    ),
    "GraniteMoeSharedForCausalLM": Architecture(
        name="granitemoeshared",
        model_type="granitemoeshared",
        overrides=granite_moe_shared,
        supported_keys=MULTIPLIERS | {"num_local_experts"},
        tensors=llama_tensors(
            {
                **GRANITE_EXPERTS,
                **SHARED_MLP,
            },
            without=WITHOUT_MLP,
        ),
        defaults=frozen(
            **GRANITE_DEFAULTS,
            num_local_experts=8,
            num_experts_per_tok=2,
            shared_intermediate_size=0,
        ),
    ),
    "HyperCLOVAXForCausalLM": Architecture(
        name="hyperclovax",
        model_type="hyperclovax",
        overrides=_hyperclovax,
        supported_keys=MULTIPLIERS,
        tensors=llama_tensors(
            {"attn_out_norm": "post_norm1.weight", "mlp_out_norm": "post_norm2.weight"}
        ),
        defaults=frozen(**GRANITE_DEFAULTS, use_post_norm=True),
    ),
    "CohereForCausalLM": Architecture(
        name="cohere",
        model_type="cohere",
        overrides=_cohere,
        interleaved_rope=True,
        supported_keys=frozenset({"logit_scale", "use_qk_norm"}),
        renamed=frozen(rms_norm_eps="layer_norm_eps"),
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=8192,
            layer_norm_eps=1e-5,
            logit_scale=0.0625,
            rope_theta=5e5,
            tie_word_embeddings=True,
            bos_token_id=5,
            eos_token_id=255_001,
        ),
    ),
    "Cohere2ForCausalLM": Architecture(
        name="cohere2",
        model_type="cohere2",
        overrides=_cohere2,
        interleaved_rope=True,
        windowed=True,
        supported_keys=frozenset({"logit_scale"}),
        renamed=frozen(rms_norm_eps="layer_norm_eps"),
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=8192,
            layer_norm_eps=1e-5,
            logit_scale=0.0625,
            sliding_window=4096,
            sliding_window_pattern=4,
            tie_word_embeddings=True,
            bos_token_id=5,
            eos_token_id=255_001,
        ),
    ),
}
