"""Arcee."""

from swiftchat.weights.architectures.parts.architecture import (
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import HeadNorms, OutputGate
from swiftchat.weights.architectures.parts.expert_readers import (
    EPS,
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERTS,
    first_dense,
)
from swiftchat.weights.architectures.parts.fields import MAX_LAYERS, flag, integer, number
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layer_readers import UNGATED, every_nth_full, full_layers
from swiftchat.weights.architectures.parts.layers import sparse, unrotated, windowed
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def _arcee(keys: Keys) -> ModelConfig:
    return keys.model(keys.layers(mlp=keys.mlp(activation=keys.activation(gated=False))))


def _afmoe(keys: Keys) -> ModelConfig:
    kinds = keys.layer_types
    if kinds is None:
        kinds = every_nth_full(keys, integer(keys, "global_attn_every_n_layers", 1, MAX_LAYERS))
    attention = keys.attention(head_norms=HeadNorms("head"), gate=OutputGate())
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False), norm_order="sandwich")
    layers = unrotated(windowed(layers, keys.windows(kinds)), full_layers(kinds))
    router = RouterConfig(
        "sigmoid",
        correction=True,
        normalized=True,
        eps=EPS,
        scale=number(keys, "route_scale", above=0.0, below=1e6),
    )
    moe = keys.moe(router, shared="num_shared_experts")
    layers = sparse(layers, moe, first_dense(keys, "num_dense_layers"))
    scale = keys.hidden_size**0.5 if flag(keys, "mup_enabled") else 1.0
    return keys.model(layers, embeddings=keys.embeddings(scale=scale))


ARCHITECTURES: Architectures = {
    "ArceeForCausalLM": Architecture(
        model_type="arcee",
        build=_arcee,
        tensors=UNGATED,
        defaults=frozen(
            max_position_embeddings=4096,
            rms_norm_eps=1e-5,
            hidden_act="relu2",
            bos_token_id=128_000,
            eos_token_id=128_001,
        ),
    ),
    "AfmoeForCausalLM": Architecture(
        model_type="afmoe",
        build=_afmoe,
        supported_keys=MOE_KEYS | WINDOW_KEYS,
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
