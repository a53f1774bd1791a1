"""Readers of the keys of mixtures of experts, and names of their tensors, of several vendors."""

from swiftchat.weights.architectures.parts.architecture import frozen
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    MAX_LAYERS,
    flag,
    integer,
    invalid,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.router import RouterConfig


def listed_dense(keys: Keys, default: int) -> frozenset[int]:
    """Return the layers with a plain MLP: those of `mlp_layer_types`, or the first ones."""
    kinds, count = keys.get("mlp_layer_types"), keys.num_layers
    if kinds is None:
        return frozenset(range(min(default, count)))
    known = ("dense", "sparse")
    if not isinstance(kinds, list) or len(kinds) != count or any(k not in known for k in kinds):
        raise invalid("mlp_layer_types", f"a list of {count} names", kinds)
    return frozenset(i for i, kind in enumerate(kinds) if kind == "dense")


def sparse_dense_layers(keys: Keys) -> frozenset[int]:
    """Return the layers with a plain MLP: all but every n-th, and those in `mlp_only_layers`."""
    count, step = keys.num_layers, integer(keys, "decoder_sparse_step", 1, 2**30)
    listed = keys.get("mlp_only_layers")
    listed = [] if listed is None else listed
    if not isinstance(listed, list) or len(listed) > count:
        raise invalid("mlp_only_layers", f"a list of at most {count} numbers", listed)
    dense = {integer({"mlp_only_layers": i}, "mlp_only_layers", 0, count - 1) for i in listed}
    return frozenset(dense | {i for i in range(count) if (i + 1) % step})


def sigmoid_router(
    keys: Keys, *, normalized: bool | None = None, scale: str = "routed_scaling_factor"
) -> RouterConfig:
    """Return DeepSeek-V3's router; `norm_topk_prob` is read if `normalized` is None."""
    groups = optional_integer(keys, "n_group", 1, MAX_EXPERTS) or 1
    if keys.num_experts % groups:
        raise invalid("n_group", "a divisor of the number of experts", groups)
    top_groups = optional_integer(keys, "topk_group", 1, groups) or 1
    candidates = top_groups * keys.num_experts // groups
    if candidates < integer(keys, "num_experts_per_tok", 1, MAX_EXPERTS):
        raise invalid("topk_group", "groups with enough experts for each token", top_groups)
    return RouterConfig(
        "sigmoid",
        correction=True,
        groups=groups,
        top_groups=top_groups,
        normalized=flag(keys, "norm_topk_prob") if normalized is None else normalized,
        eps=EPS,
        scale=number(keys, scale, above=0.0, below=1e6, default=1.0),
    )


def first_dense(keys: Keys, name: str) -> frozenset[int]:
    """Return the first layers; the key `name` is their number."""
    return frozenset(range(integer(keys, name, 0, MAX_LAYERS)))


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

CORRECTION = frozen(router_correction="mlp.gate.e_score_correction_bias")

EPS = 1e-20
