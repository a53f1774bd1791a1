"""Readers of kinds of layers, and names of tensors, that models of several vendors share."""

from collections.abc import Sequence

from swiftchat.weights.architectures.parts.architecture import frozen, llama_tensors
from swiftchat.weights.architectures.parts.fields import Fields, invalid, mapping
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.rope import RopeConfig


def every_nth_full(keys: Keys, n: int) -> list[str]:
    """Return kinds of layers, of which every n-th attends to all tokens."""
    return [KINDS[bool((i + 1) % n)] for i in range(keys.num_layers)]


def full_layers(kinds: Sequence[str]) -> frozenset[int]:
    """Return the layers that attend to all tokens."""
    return frozenset(i for i, kind in enumerate(kinds) if kind == "full_attention")


def ropes(keys: Keys, default: Fields, fraction: float) -> list[RopeConfig]:
    """Return the rotations of both kinds of layers; a part of a head is `fraction` by default."""
    if keys.get("rope_scaling"):  # the reference does not read it
        raise invalid("rope_scaling", "absent, and rope_parameters instead", "an object")
    named = mapping(keys, "rope_parameters") or default
    context = {"max_position_embeddings": keys.get("max_position_embeddings")}
    found = []
    for kind in KINDS:
        rope = mapping(named, kind)
        if rope is None:
            raise invalid(f"rope_parameters.{kind}", "an object", None)
        rope = {"partial_rotary_factor": fraction, **rope}
        found.append(RopeConfig.from_hf({**context, "rope_parameters": rope}, keys.head_dim))
    return found


OUTPUT_NORMS = frozen(
    attn_out_norm="post_attention_layernorm.weight",
    mlp_out_norm="post_feedforward_layernorm.weight",
)

UNGATED = llama_tensors({}, without=("gate", "gate_bias"))

KINDS = ("full_attention", "sliding_attention")
