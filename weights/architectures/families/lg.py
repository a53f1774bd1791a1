"""LG: EXAONE."""

from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.attention import HeadNorms
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERTS,
    listed_dense,
    sigmoid_router,
)
from swiftchat.weights.architectures.parts.fields import MAX_LAYERS, integer
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layer_readers import (
    OUTPUT_NORMS,
    every_nth_full,
    full_layers,
)
from swiftchat.weights.architectures.parts.layers import Layers, sparse, unrotated, windowed
from swiftchat.weights.architectures.parts.mlp import Mlp
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.variants import TypeVariant


def exaone4_layers(keys: Keys, mlp: Mlp | None, **fields: Any) -> Layers:
    """Return layers of which those with a window are rotated, or all if none has one."""
    has_windows = keys.get("sliding_window") is not None
    kinds = keys.layer_types
    if kinds is None:
        pattern = integer(keys, "sliding_window_pattern", 1, MAX_LAYERS) if has_windows else 1
        kinds = every_nth_full(keys, pattern)
    attention = keys.attention(bias=False, head_norms=HeadNorms("head"))
    layers = keys.layers(attention=attention, mlp=mlp, **fields)
    layers = windowed(layers, keys.windows(kinds))
    return unrotated(layers, full_layers(kinds)) if has_windows else layers


def _exaone4(keys: Keys) -> ModelConfig:
    return keys.model(exaone4_layers(keys, keys.mlp(bias=False), norm_order="output"))


def _exaone(keys: Keys) -> ModelConfig:
    attention = keys.attention(bias=False)
    return keys.model(keys.layers(attention=attention, mlp=keys.mlp(bias=False)))


def _exaone_moe(keys: Keys) -> ModelConfig:
    moe = keys.moe(sigmoid_router(keys), shared="num_shared_experts")
    dense = listed_dense(keys, integer(keys, "first_k_dense_replace", 0, MAX_LAYERS))
    layers = exaone4_layers(keys, keys.mlp(bias=False))
    return keys.model(sparse(layers, moe, dense))


_EXAONE_KEYS = frozen(
    num_hidden_layers="num_layers",
    rms_norm_eps="layer_norm_epsilon",
    hidden_act="activation_function",
)


ARCHITECTURES: Architectures = {
    "Exaone4ForCausalLM": Architecture(
        model_type="exaone4",
        build=_exaone4,
        supported_keys=WINDOW_KEYS,
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
        model_type="exaone",
        build=_exaone,
        renamed=_EXAONE_KEYS,
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
        model_type="exaone_moe",
        build=_exaone_moe,
        supported_keys=MOE_KEYS | WINDOW_KEYS,
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

VARIANTS = (
    TypeVariant(
        "LlamaForCausalLM",
        "exaone",
        renamed=_EXAONE_KEYS,
        defaults=frozen(
            max_position_embeddings=4096,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            rope_theta=500_000.0,
            eos_token_id=361,
        ),
    ),
)
