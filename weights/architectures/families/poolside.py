"""Poolside: Laguna.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERTS,
    experts_of_width,
    listed_dense,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_WIDTH,
    Fields,
    flag,
    integer,
    invalid,
    layer_types,
    num_heads,
    num_layers,
    number,
    optional_number,
)
from swiftchat.weights.architectures.parts.layer_readers import ropes
from swiftchat.weights.architectures.parts.layers import LayerSizes
from swiftchat.weights.architectures.parts.router import RouterConfig


def _heads(config: Fields) -> list[int]:
    """Return the number of query heads of each layer."""
    listed, count = config.get("num_attention_heads_per_layer"), num_layers(config)
    if listed is None:
        return [num_heads(config)] * count
    if not isinstance(listed, list) or len(listed) != count:
        raise invalid("num_attention_heads_per_layer", f"a list of {count} numbers", str(listed))
    name = "num_attention_heads_per_layer"
    return [integer({name: each}, name, 1, MAX_HEADS) for each in listed]


def _laguna(config: Fields) -> Mapping[str, Any]:
    gating = config.get("gating")
    if gating not in (True, "per-head", "per-element"):
        raise invalid("gating", "true, per-head or per-element", gating)
    if flag(config, "moe_apply_router_weight_on_input"):
        raise invalid("moe_apply_router_weight_on_input", "false", True)
    heads = _heads(config)
    kv_heads = integer(config, "num_key_value_heads", 1, MAX_HEADS)
    if any(each % kv_heads for each in heads):
        raise invalid("num_key_value_heads", f"a divisor of {heads} heads", kv_heads)
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    inner = integer(config, "intermediate_size", 1, MAX_WIDTH)
    sizes = tuple(LayerSizes(head_dim, kv_heads, inner, each) for each in heads)
    softcap = optional_number(config, "moe_router_logit_softcapping", above=-1e-9, below=1e6)
    router = RouterConfig(
        "sigmoid",
        correction=True,
        normalized=True,
        scale=number(config, "moe_routed_scaling_factor", above=0.0, below=1e6),
        softcap=softcap or 0.0,
    )
    bias, kinds = flag(config, "attention_bias"), layer_types(config)
    return {
        **experts_of_width(config, router, None),
        **ropes(config, _LAGUNA_ROPES, 1.0),
        "layer_types": ["full_attention"] * len(heads) if kinds is None else kinds,
        "attention_bias": bias,
        "output_bias": bias,
        "layer_sizes": sizes if len({*heads, num_heads(config)}) > 1 else (),
        "qk_norm": "head",
        "attention_gate": True,
        "gate_by_head": gating != "per-element",
        "softplus_gate": True,
        "shared_expert_size": integer(config, "shared_expert_intermediate_size", 1, MAX_WIDTH),
        "dense_layers": listed_dense(config, 1),
    }


_LAGUNA_ROPES = frozen(
    full_attention=frozen(rope_theta=5e5, partial_rotary_factor=0.5),
    sliding_attention=frozen(rope_theta=1e4, partial_rotary_factor=1.0),
)


POOLSIDE: Mapping[str, Architecture] = {
    "LagunaForCausalLM": Architecture(
        name="laguna",
        model_type="laguna",
        overrides=_laguna,
        windowed=True,
        supported_keys=MOE_KEYS,
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
