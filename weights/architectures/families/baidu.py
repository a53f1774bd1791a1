"""Baidu: ERNIE."""

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import EXPERTS, MOE_KEYS, SHARED_EXPERTS
from swiftchat.weights.architectures.parts.fields import MAX_LAYERS, flag, integer, invalid
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layers import sparse
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def _ernie(keys: Keys) -> ModelConfig:
    bias = flag(keys, "use_bias")
    attention = keys.attention(bias=bias, rope=keys.rope(interleaved=True))
    return keys.model(keys.layers(attention=attention, mlp=keys.mlp(bias=bias)))


def _ernie_moe(keys: Keys) -> ModelConfig:
    if flag(keys, "use_bias"):
        raise invalid("use_bias", "false", True)
    count = keys.num_layers
    first = integer(keys, "moe_layer_start_index", 0, MAX_LAYERS)
    last = integer(keys, "moe_layer_end_index", -1, MAX_LAYERS)
    last = count - 1 if last == -1 else last
    step = integer(keys, "moe_layer_interval", 1, MAX_LAYERS)
    dense = {i for i in range(count) if not first <= i <= last or (i + 1) % step}
    attention = keys.attention(bias=False, rope=keys.rope(interleaved=True))
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    router = RouterConfig(correction=True, normalized=True)
    return keys.model(sparse(layers, keys.moe(router, shared="moe_num_shared_experts"), dense))


ARCHITECTURES: Architectures = {
    "Ernie4_5ForCausalLM": Architecture(
        model_type="ernie4_5",
        build=_ernie,
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
        model_type="ernie4_5_moe",
        build=_ernie_moe,
        row_vectors=frozenset({"router_correction"}),
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
