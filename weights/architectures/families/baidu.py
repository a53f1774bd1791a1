"""Baidu: ERNIE.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERTS,
    experts_of_width,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_LAYERS,
    Fields,
    flag,
    integer,
    invalid,
    num_layers,
)
from swiftchat.weights.architectures.parts.router import RouterConfig


def _ernie(config: Fields) -> Mapping[str, Any]:
    bias = flag(config, "use_bias")
    return {"attention_bias": bias, "output_bias": bias, "mlp_bias": bias}


def _ernie_moe(config: Fields) -> Mapping[str, Any]:
    bias, count = flag(config, "use_bias"), num_layers(config)
    if bias:
        raise invalid("use_bias", "false", bias)
    first = integer(config, "moe_layer_start_index", 0, MAX_LAYERS)
    last = integer(config, "moe_layer_end_index", -1, MAX_LAYERS)
    last = count - 1 if last == -1 else last
    step = integer(config, "moe_layer_interval", 1, MAX_LAYERS)
    sparse = {i for i in range(count) if first <= i <= last and (i + 1) % step == 0}
    router = RouterConfig(correction=True, normalized=True)
    return {
        **experts_of_width(config, router, "moe_num_shared_experts"),
        "attention_bias": False,
        "dense_layers": frozenset(range(count)) - sparse,
    }


BAIDU: Mapping[str, Architecture] = {
    "Ernie4_5ForCausalLM": Architecture(
        name="ernie4_5",
        model_type="ernie4_5",
        overrides=_ernie,
        interleaved_rope=True,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=2,
            head_dim=128,
            rope_theta=5e5,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "Ernie4_5_MoeForCausalLM": Architecture(
        name="ernie4_5_moe",
        model_type="ernie4_5_moe",
        overrides=_ernie_moe,
        row_vectors=frozenset({"router_correction"}),
        interleaved_rope=True,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="moe_num_experts", num_experts_per_tok="moe_k"),
        tensors=llama_tensors(
            {
                **EXPERTS,
                **SHARED_EXPERTS,
                "router_correction": "mlp.moe_statics.e_score_correction_bias",
            }
        ),
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=4,
            moe_intermediate_size=1536,
            moe_num_experts=64,
            moe_k=6,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
            moe_layer_end_index=-1,
            moe_layer_interval=1,
            rope_theta=5e5,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}
