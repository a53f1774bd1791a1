"""Kolibri, Flint and Granite with windows: rotation only in layers with a window, or by layer.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.gemma import every_nth_full
from swiftchat.weights.architectures.families.granite_cohere import (
    GRANITE_DEFAULTS,
    MULTIPLIERS,
    SHARED_MLP,
    WITHOUT_MLP,
    granite,
    granite_moe_shared,
)
from swiftchat.weights.architectures.families.llama_like import exaone4
from swiftchat.weights.architectures.families.moe import MOE_KEYS, SHARED_EXPERTS, experts_of_width
from swiftchat.weights.architectures.families.qwen import (
    EXPERTS,
    SHARED_EXPERT,
    sparse_dense_layers,
)
from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    layer_types,
    mapping,
    num_heads,
    num_layers,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.rope import RopeConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def _shared_size(config: Fields) -> int:
    return integer(config, "shared_expert_intermediate_size", 0, MAX_WIDTH)


def _kolibri(config: Fields) -> Mapping[str, Any]:
    kinds = layer_types(config)
    config = {**config, "layer_types": every_nth_full(config, 5) if kinds is None else kinds}
    normalized = flag(config, "norm_topk_prob")
    router = RouterConfig("sigmoid", correction=True, by_logits=True, normalized=normalized)
    return {
        **experts_of_width(config, router, None),
        **exaone4(config),
        "intermediate_size": integer(config, "moe_intermediate_size", 1, MAX_WIDTH),
        "norm_order": "sandwich",
        "shared_expert_size": _shared_size(config),
    }


def _flint(config: Fields) -> Mapping[str, Any]:
    count, kinds = num_layers(config), layer_types(config)
    if kinds is None:
        full = {i for i in range(count) if i < 2 or i % 4 == 1} | {count - 1}
        kinds = ["full_attention" if i in full else "sliding_attention" for i in range(count)]
    if config.get("mlp_only_layers") is None:
        config = {**config, "mlp_only_layers": [i for i in (0, 1) if i < count]}
    router = RouterConfig("sigmoid", normalized=flag(config, "norm_topk_prob"))
    return {
        **experts_of_width(config, router, None),
        "qk_norm": "head",
        "attention_sinks": True,
        "output_bias": flag(config, "attention_bias"),
        "layer_types": kinds,
        "unrotated_layers": frozenset(i for i, k in enumerate(kinds) if k == "full_attention"),
        "dense_layers": sparse_dense_layers(config),
        "shared_expert_size": _shared_size(config),
    }


def _layer_ropes(config: Fields) -> Mapping[str, Any]:
    """Return the fields of sinks, windows and the base of the rotation of each layer."""
    count, kinds = num_layers(config), layer_types(config)
    if kinds is None:
        kinds = ["sliding_attention" if i % 4 else "full_attention" for i in range(count)]
    head_dim = optional_integer(config, "head_dim", 2, MAX_HEAD_DIM)
    head_dim = hidden_size(config) // num_heads(config) if head_dim is None else head_dim
    fields = {"attention_sinks": True, "layer_types": kinds}
    bases = config.get("layer_rope_theta")
    if bases is None:
        return {**fields, "rope": RopeConfig.from_hf(config, head_dim)}
    if not isinstance(bases, list) or len(bases) != count or len(kinds) != count:
        raise invalid("layer_rope_theta", f"a list of {count} numbers", bases)
    name = "layer_rope_theta"
    bases = [number({name: base}, name, above=-1.0, below=1e12) for base in bases]
    ropes: dict[str, RopeConfig] = {}
    for kind, base in zip(kinds, bases, strict=True):
        if not base:
            continue
        source = "rope_scaling" if mapping(config, "rope_scaling") else "rope_parameters"
        parameters = {**(mapping(config, source) or {}), "rope_theta": base}
        rope = RopeConfig.from_hf({**config, source: parameters}, head_dim)
        if ropes.setdefault(kind, rope) != rope:
            raise invalid(name, "one number for each kind of layer, or 0", base)
    full, local = ropes.get("full_attention"), ropes.get("sliding_attention")
    return {
        **fields,
        "rope": full or local,
        "local_rope": local if full and local else None,
        "unrotated_layers": frozenset(i for i, base in enumerate(bases) if not base),
    }


def _granite_swa(config: Fields) -> Mapping[str, Any]:
    return {**granite(config), **_layer_ropes(config)}


def _granite_moe_swa(config: Fields) -> Mapping[str, Any]:
    return {**granite_moe_shared(config), **_layer_ropes(config)}


_SINKS = frozen(sinks="self_attn.sinks")

WINDOWED_MOE: Mapping[str, Architecture] = {
    "Kolibri1ForCausalLM": Architecture(
        name="kolibri1",
        model_type="kolibri1",
        overrides=_kolibri,
        windowed=True,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(
            {
                **EXPERTS,
                **SHARED_EXPERTS,
                "router_correction": "moe.router.expert_bias",
                "attn_out_norm": "post_attn_norm.weight",
                "mlp_out_norm": "post_ffn_norm.weight",
            }
        ),
        defaults=frozen(
            max_position_embeddings=262_144,
            rms_norm_eps=1e-6,
            num_key_value_heads=4,
            head_dim=128,
            sliding_window=513,
            num_local_experts=384,
            num_experts_per_tok=6,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
            norm_topk_prob=False,
        ),
    ),
    "FlintForCausalLM": Architecture(
        name="flint",
        model_type="flint",
        overrides=_flint,
        windowed=True,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors({**EXPERTS, **SHARED_EXPERT, "sinks": "self_attn.softmax_offset"}),
        defaults=frozen(
            max_position_embeddings=262_144,
            rms_norm_eps=1e-6,
            num_key_value_heads=4,
            head_dim=128,
            sliding_window=513,
            decoder_sparse_step=1,
            num_local_experts=256,
            num_experts_per_tok=6,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=1024,
            norm_topk_prob=True,
        ),
    ),
    "GraniteSWAForCausalLM": Architecture(
        name="granite_swa",
        model_type="granite_swa",
        overrides=_granite_swa,
        windowed=True,
        supported_keys=MULTIPLIERS,
        tensors=llama_tensors(_SINKS),
        defaults=frozen(
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
            num_key_value_heads=4,
            sliding_window=128,
            tie_word_embeddings=True,
            bos_token_id=100_257,
            eos_token_id=100_257,
        ),
    ),
    "GraniteMoeSWAForCausalLM": Architecture(
        name="granitemoe_swa",
        model_type="granitemoe_swa",
        overrides=_granite_moe_swa,
        windowed=True,
        supported_keys=MULTIPLIERS | {"num_local_experts"},
        tensors=llama_tensors(
            {
                **_SINKS,
                **SHARED_MLP,
                "router": "block_sparse_moe.router.weight",
                "experts_gate_up": "block_sparse_moe.experts.gate_up_proj",
                "experts_down": "block_sparse_moe.experts.down_proj",
            },
            without=WITHOUT_MLP,
        ),
        defaults=frozen(
            **GRANITE_DEFAULTS,
            sliding_window=128,
            num_local_experts=8,
            num_experts_per_tok=2,
            shared_intermediate_size=0,
        ),
    ),
}
