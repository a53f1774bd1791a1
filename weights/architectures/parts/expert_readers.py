"""Readers of the keys of mixtures of experts, and names of their tensors, of several vendors."""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    frozen,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
    flag,
    integer,
    invalid,
    num_layers,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.router import RouterConfig


def moe_overrides(config: Fields) -> Mapping[str, Any]:
    """Return the fields that all mixture-of-experts models read."""
    experts = integer(config, "num_local_experts", 1, MAX_EXPERTS)
    return {
        "attention_bias": False,
        "mlp_bias": False,
        "num_experts": experts,
        "expert_size": integer(config, "intermediate_size", 1, MAX_WIDTH),
        "experts_per_token": integer(config, "num_experts_per_tok", 1, experts),
        "router": RouterConfig(normalized=True),
    }


def experts_of_width(config: Fields, router: RouterConfig, shared: str | None) -> dict[str, Any]:
    """Return the fields of experts of `moe_intermediate_size`; `shared` is the key of a count."""
    width = integer(config, "moe_intermediate_size", 1, MAX_WIDTH)
    count = 0 if shared is None else optional_integer(config, shared, 0, MAX_EXPERTS) or 0
    return {
        **moe_overrides({**config, "intermediate_size": width}),
        "attention_bias": flag(config, "attention_bias"),
        "output_bias": False,
        "shared_expert_size": count * width,
        "router": router,
    }


def listed_dense(config: Fields, default: int) -> frozenset[int]:
    """Return the layers with a plain MLP: those of `mlp_layer_types`, or the first ones."""
    kinds, count = config.get("mlp_layer_types"), num_layers(config)
    if kinds is None:
        return frozenset(range(min(default, count)))
    known = ("dense", "sparse")
    if not isinstance(kinds, list) or len(kinds) != count or any(k not in known for k in kinds):
        raise invalid("mlp_layer_types", f"a list of {count} names", kinds)
    return frozenset(i for i, kind in enumerate(kinds) if kind == "dense")


def sparse_dense_layers(config: Fields) -> frozenset[int]:
    """Return the layers with a plain MLP: all but every n-th, and those in `mlp_only_layers`."""
    count, step = num_layers(config), integer(config, "decoder_sparse_step", 1, 2**30)
    listed = config.get("mlp_only_layers")
    listed = [] if listed is None else listed
    if not isinstance(listed, list) or len(listed) > count:
        raise invalid("mlp_only_layers", f"a list of at most {count} numbers", listed)
    dense = {integer({"mlp_only_layers": i}, "mlp_only_layers", 0, count - 1) for i in listed}
    return frozenset(dense | {i for i in range(count) if (i + 1) % step})


def sigmoid_router(config: Fields, *, normalized: bool, scale: str) -> RouterConfig:
    """Return DeepSeek-V3's router."""
    groups = optional_integer(config, "n_group", 1, MAX_EXPERTS) or 1
    if integer(config, "num_local_experts", 1, MAX_EXPERTS) % groups:
        raise invalid("n_group", "a divisor of the number of experts", groups)
    top_groups = optional_integer(config, "topk_group", 1, groups) or 1
    candidates = top_groups * integer(config, "num_local_experts", 1, MAX_EXPERTS) // groups
    if candidates < integer(config, "num_experts_per_tok", 1, MAX_EXPERTS):
        raise invalid("topk_group", "groups with enough experts for each token", top_groups)
    return RouterConfig(
        "sigmoid",
        correction=True,
        groups=groups,
        top_groups=top_groups,
        normalized=normalized,
        eps=EPS,
        scale=number(config, scale, above=0.0, below=1e6, default=1.0),
    )


def first_dense(config: Fields, name: str) -> frozenset[int]:
    """Return the first layers; the key `name` is their number."""
    return frozenset(range(integer(config, name, 0, MAX_LAYERS)))


SHARED_EXPERTS = frozen(
    shared_gate="mlp.shared_experts.gate_proj.weight",
    shared_up="mlp.shared_experts.up_proj.weight",
    shared_down="mlp.shared_experts.down_proj.weight",
)

MIXTRAL_EXPERTS = frozen(
    router="block_sparse_moe.gate.weight",
    expert_gate="block_sparse_moe.experts.{e}.w1.weight",
    expert_up="block_sparse_moe.experts.{e}.w3.weight",
    expert_down="block_sparse_moe.experts.{e}.w2.weight",
)

MOE_KEYS = frozenset(
    {"num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"}
)

EXPERTS = {
    "router": "mlp.gate.weight",
    "expert_gate": "mlp.experts.{e}.gate_proj.weight",
    "expert_up": "mlp.experts.{e}.up_proj.weight",
    "expert_down": "mlp.experts.{e}.down_proj.weight",
}

SHARED_EXPERT = {
    "shared_router": "mlp.shared_expert_gate.weight",
    "shared_gate": "mlp.shared_expert.gate_proj.weight",
    "shared_up": "mlp.shared_expert.up_proj.weight",
    "shared_down": "mlp.shared_expert.down_proj.weight",
}

EPS = 1e-20
