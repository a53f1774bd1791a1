"""Arcee.

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
    EPS,
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERTS,
    experts_of_width,
    first_dense,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_LAYERS,
    Fields,
    flag,
    hidden_size,
    integer,
    layer_types,
    number,
)
from swiftchat.weights.architectures.parts.layer_readers import UNGATED, every_nth_full
from swiftchat.weights.architectures.parts.router import RouterConfig


def _arcee(config: Fields) -> Mapping[str, Any]:
    return {"gated": False}


def _afmoe(config: Fields) -> Mapping[str, Any]:
    kinds = layer_types(config)
    if kinds is None:
        pattern = integer(config, "global_attn_every_n_layers", 1, MAX_LAYERS)
        kinds = every_nth_full(config, pattern)
    router = RouterConfig(
        "sigmoid",
        correction=True,
        normalized=True,
        eps=EPS,
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


ARCEE: Mapping[str, Architecture] = {
    "ArceeForCausalLM": Architecture(
        name="arcee",
        model_type="arcee",
        overrides=_arcee,
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
