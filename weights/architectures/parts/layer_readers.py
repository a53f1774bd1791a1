"""Readers of kinds of layers, and names of tensors, that models of several vendors share."""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    Fields,
    hidden_size,
    integer,
    invalid,
    mapping,
    num_heads,
    num_layers,
    optional_integer,
)
from swiftchat.weights.architectures.parts.rope import (
    RopeConfig,
)


def head_dim_of(config: Fields) -> int:
    head_dim = optional_integer(config, "head_dim", 2, MAX_HEAD_DIM)
    return head_dim or hidden_size(config) // num_heads(config)


def every_nth_full(config: Fields, n: int) -> list[str]:
    return [
        "sliding_attention" if (i + 1) % n else "full_attention" for i in range(num_layers(config))
    ]


def layer_norms(config: Fields) -> Mapping[str, Any]:
    return {"gated": False, "norm": "layer", "norm_bias": True}


def ropes(config: Fields, default: Fields, fraction: float) -> Mapping[str, Any]:
    """Return the rotations of both kinds of layers; a part of a head is `fraction` by default."""
    if config.get("rope_scaling"):  # the reference does not read it
        raise invalid("rope_scaling", "absent, and rope_parameters instead", "an object")
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    named = mapping(config, "rope_parameters") or default
    context = {"max_position_embeddings": config.get("max_position_embeddings")}
    ropes = []
    for kind in KINDS:
        rope = mapping(named, kind)
        if rope is None:
            raise invalid(f"rope_parameters.{kind}", "an object", None)
        rope = {"partial_rotary_factor": fraction, **rope}
        ropes.append(RopeConfig.from_hf({**context, "rope_parameters": rope}, head_dim))
    return {"rope": ropes[0], "local_rope": ropes[1]}


OUTPUT_NORMS = frozen(
    attn_out_norm="post_attention_layernorm.weight",
    mlp_out_norm="post_feedforward_layernorm.weight",
)

UNGATED = llama_tensors({}, without=("gate", "gate_bias"))

KINDS = ("full_attention", "sliding_attention")
