"""Poolside: Laguna."""

from swiftchat.weights.architectures.parts.architecture import (
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import HeadNorms, OutputGate
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERTS,
    listed_dense,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEADS,
    MAX_WIDTH,
    flag,
    integer,
    invalid,
    number,
    optional_number,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layer_readers import ropes
from swiftchat.weights.architectures.parts.layers import sparse, windowed
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def _heads(keys: Keys) -> list[int]:
    """Return the number of query heads of each layer."""
    name, count = "num_attention_heads_per_layer", keys.num_layers
    listed = keys.get(name)
    if listed is None:
        return [keys.num_heads] * count
    if not isinstance(listed, list) or len(listed) != count:
        raise invalid(name, f"a list of {count} numbers", str(listed))
    return [integer({name: each}, name, 1, MAX_HEADS) for each in listed]


def _laguna(keys: Keys) -> ModelConfig:
    gating = keys.get("gating")
    if gating not in (True, "per-head", "per-element"):
        raise invalid("gating", "true, per-head or per-element", gating)
    if flag(keys, "moe_apply_router_weight_on_input"):
        raise invalid("moe_apply_router_weight_on_input", "false", True)
    heads, kinds = _heads(keys), keys.layer_types
    kv_heads = integer(keys, "num_key_value_heads", 1, MAX_HEADS)
    if any(each % kv_heads for each in heads):
        raise invalid("num_key_value_heads", f"a divisor of {heads} heads", kv_heads)
    rope, local_rope = ropes(keys, _LAGUNA_ROPES, 1.0)
    attention = keys.attention(
        num_kv_heads=kv_heads,
        rope=rope,
        head_norms=HeadNorms("head"),
        gate=OutputGate(by_head=gating != "per-element", softplus=True),
    )
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    layers = tuple(
        layer.with_attention(num_heads=each) for layer, each in zip(layers, heads, strict=True)
    )
    windows = keys.windows(["full_attention"] * len(heads) if kinds is None else kinds)
    softcap = optional_number(keys, "moe_router_logit_softcapping", above=-1e-9, below=1e6)
    router = RouterConfig(
        "sigmoid",
        correction=True,
        normalized=True,
        scale=number(keys, "moe_routed_scaling_factor", above=0.0, below=1e6),
        softcap=softcap or 0.0,
    )
    shared = integer(keys, "shared_expert_intermediate_size", 1, MAX_WIDTH)
    moe = keys.moe(router, shared_size=shared)
    return keys.model(sparse(windowed(layers, windows, local_rope), moe, listed_dense(keys, 1)))


_LAGUNA_ROPES = frozen(
    full_attention=frozen(rope_theta=5e5, partial_rotary_factor=0.5),
    sliding_attention=frozen(rope_theta=1e4, partial_rotary_factor=1.0),
)


ARCHITECTURES: Architectures = {
    "LagunaForCausalLM": Architecture(
        model_type="laguna",
        build=_laguna,
        supported_keys=MOE_KEYS | WINDOW_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(
            {
                **EXPERTS,
                **{
                    name: rest.replace("experts", "expert") for name, rest in SHARED_EXPERTS.items()
                },
                "router_correction": "mlp.experts.e_score_correction_bias",
                "attn_gate": "self_attn.g_proj.weight",
            }
        ),
        defaults=frozen(
            vocab_size=100_352,
            intermediate_size=8192,
            num_hidden_layers=40,
            num_attention_heads=48,
            num_key_value_heads=8,
            max_position_embeddings=131_072,
            rms_norm_eps=1e-6,
            num_local_experts=256,
            num_experts_per_tok=8,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
            sliding_window=512,
            head_dim=128,
            gating=True,
            moe_routed_scaling_factor=1.0,
        ),
    ),
}
