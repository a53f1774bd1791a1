"""Gemma 4 (text models).

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from swiftchat.weights.architectures.families.gemma import every_nth_full
from swiftchat.weights.architectures.parts.architecture import Architecture, frozen, llama_tensors
from swiftchat.weights.architectures.parts.embeddings import PerLayerEmbeddings
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_VOCAB,
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
    optional_integer,
)
from swiftchat.weights.architectures.parts.layers import LayerSizes
from swiftchat.weights.architectures.parts.rope import rope_of_kind
from swiftchat.weights.architectures.parts.router import RouterConfig

PER_LAYER_TENSORS = frozen(
    ple_embed="model.embed_tokens_per_layer.weight",
    ple_project="model.per_layer_model_projection.weight",
    ple_project_norm="model.per_layer_projection_norm.weight",
)
PER_LAYER_BRANCH = frozen(
    ple_gate="per_layer_input_gate.weight",
    ple_out="per_layer_projection.weight",
    ple_out_norm="post_per_layer_input_norm.weight",
)
_ROPES = frozen(
    sliding_attention=frozen(rope_type="default", rope_theta=1e4),
    full_attention=frozen(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1e6),
)


def _gemma4(config: Fields) -> Mapping[str, Any]:
    if config.get("use_bidirectional_attention") not in (None, False, "vision"):
        raise invalid(
            "use_bidirectional_attention",
            "absent or vision",
            config["use_bidirectional_attention"],
        )
    kinds = [*layer_kinds(config, 6)[:-1], "full_attention"]
    sources = kv_sources(config, kinds)
    full = frozenset(i for i, kind in enumerate(kinds) if kind == "full_attention")
    sizes = _sizes(config, kinds, sources)
    heads = {kind: size.head_dim for kind, size in zip(kinds, sizes, strict=True)}
    for layer, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        if size.head_dim != heads[kind]:
            key = f"head_dim of layer {layer}"
            raise invalid(key, f"that of other layers of its kind, {heads[kind]}", size.head_dim)
    ropes = {kind: rope_of_kind(config, _ROPES, kind, head_dim) for kind, head_dim in heads.items()}
    rope = ropes["full_attention"]
    window = integer(config, "sliding_window", 1, MAX_CONTEXT) if len(full) < len(kinds) else None
    as_values = full if flag(config, "attention_k_eq_v") else frozenset()
    return {
        "mlp_bias": False,
        "embedding_scale": hidden_size(config) ** 0.5,
        "norm_order": "sandwich",
        "qk_norm": "head",
        "query_scalar": 1.0,
        "value_norm": True,
        "layer_scales": True,
        "rope": rope,
        "local_rope": ropes.get("sliding_attention"),
        "sliding_window": window,
        "full_layers": frozenset() if window is None else full,
        "layer_sizes": sizes if len({*sizes}) > 1 else (),
        **({} if len({*sizes}) > 1 else vars(sizes[0])),
        "kv_sources": sources,
        "keys_as_values": frozenset(i for i in as_values if not sources or sources[i] == i),
        **per_layer_embeddings(config),
        **_experts(config),
    }


def layer_kinds(config: Fields, pattern: int) -> list[str]:
    """Return the kind of attention of each layer; without the key every `pattern`-th is full."""
    count, kinds = num_layers(config), layer_types(config)
    if kinds is None:
        kinds = every_nth_full(config, pattern)
    if len(kinds) != count or {*kinds} - {"full_attention", "sliding_attention"}:
        raise invalid("layer_types", f"{count} times full_attention or sliding_attention", kinds)
    return kinds


def kv_sources(config: Fields, kinds: Sequence[str]) -> tuple[int, ...]:
    """Return the layer whose keys and values each layer reads; empty if all have their own.

    The last `num_kv_shared_layers` read those of the last layer of their kind before them.
    """
    count = len(kinds)
    shared = optional_integer(config, "num_kv_shared_layers", 0, count - 1)
    if not shared:
        return ()
    own = count - shared
    last = {kind: i for i, kind in enumerate(kinds[:own])}
    if {*kinds[own:]} - last.keys():
        raise invalid(
            "num_kv_shared_layers", "less, so that each has a layer of its kind before", shared
        )
    return tuple(i if i < own else last[kinds[i]] for i in range(count))


def per_layer_embeddings(config: Fields) -> dict[str, Any]:
    """Return the field of embeddings for each layer, which have a width of 0 if there are none."""
    width = optional_integer(config, "hidden_size_per_layer_input", 0, MAX_WIDTH)
    if not width:
        return {}
    ids = integer(config, "vocab_size_per_layer_input", 1, MAX_VOCAB)
    return {"per_layer_embeddings": PerLayerEmbeddings(width, ids)}


def _sizes(config: Fields, kinds: Sequence[str], sources: Sequence[int]) -> tuple[LayerSizes, ...]:
    """Return the sizes of all layers; `per_layer_config` replaces the older keys of full ones."""
    width, wide = integer(config, "intermediate_size", 1, MAX_WIDTH), 1
    if flag(config, "use_double_wide_mlp"):
        wide = 2
    standard = {key: config[key] for key in ("head_dim", "num_key_value_heads")}
    full = {"head_dim": config.get("global_head_dim", 512)}
    if flag(config, "attention_k_eq_v") and config.get("num_global_key_value_heads") is not None:
        full["num_key_value_heads"] = config["num_global_key_value_heads"]
    changes = {str(i): full for i, kind in enumerate(kinds) if kind == "full_attention"}
    by_layer = _by_layer(config)
    found = changes if by_layer is None else by_layer
    sizes = []
    for i in range(len(kinds)):
        own = mapping(found, str(i)) or {}
        if own.keys() - standard.keys():
            raise invalid("per_layer_config", f"only {', '.join(standard)}", sorted(own)[0])
        merged = {**standard, **own}
        heads = num_heads(config)
        kv_heads = integer(merged, "num_key_value_heads", 1, MAX_HEADS)
        if heads % kv_heads:
            raise invalid("num_key_value_heads", f"a divisor of {heads} heads", kv_heads)
        head_dim = integer(merged, "head_dim", 2, MAX_HEAD_DIM)
        if head_dim % 2:
            raise invalid("head_dim", "an even number", head_dim)
        is_shared = bool(sources) and sources[i] != i
        sizes.append(LayerSizes(head_dim, kv_heads, width * (wide if is_shared else 1), heads))
    return tuple(sizes)


def _by_layer(config: Fields) -> dict[str, Any] | None:
    """Return `per_layer_config` by the number of the layer, which transformers pads with zeros."""
    found = mapping(config, "per_layer_config")
    if found is None:
        return None
    count = num_layers(config)
    numbers = {name: name.lstrip("0") or "0" for name in found if name}
    known = {str(i) for i in range(count)}
    for name in found:
        if numbers.get(name) not in known:
            raise invalid("per_layer_config", f"by numbers of {count} layers", name)
    if len({*numbers.values()}) < len(numbers):
        raise invalid("per_layer_config", "with one entry for each layer", sorted(found)[0])
    return {numbers[name]: value for name, value in found.items()}


def _experts(config: Fields) -> dict[str, Any]:
    if not flag(config, "enable_moe_block"):
        return {}
    count = integer(config, "num_experts", 1, MAX_EXPERTS)
    return {
        "num_experts": count,
        "experts_per_token": integer(config, "top_k_experts", 1, count),
        "expert_size": integer(config, "moe_intermediate_size", 1, MAX_WIDTH),
        "router": RouterConfig(normalized=True),
        "mlp_and_experts": True,
    }


def _unified(config: Fields) -> Mapping[str, Any]:
    return _gemma4({**config, "hidden_size_per_layer_input": 0, "enable_moe_block": False})


_GEMMA4 = Architecture(
    name="gemma4",
    model_type="gemma4_text",
    overrides=_gemma4,
    tensors={
        **PER_LAYER_TENSORS,
        **llama_tensors(
            {
                "attn_out_norm": "post_attention_layernorm.weight",
                "mlp_norm": "pre_feedforward_layernorm.weight",
                "mlp_out_norm": "post_feedforward_layernorm.weight",
                "layer_scale": "layer_scalar",
                "router": "router.proj.weight",
                "router_scale": "router.scale",
                "expert_scales": "router.per_expert_scale",
                "experts_gate_up": "experts.gate_up_proj",
                "experts_down": "experts.down_proj",
                "dense_out_norm": "post_feedforward_layernorm_1.weight",
                "experts_norm": "pre_feedforward_layernorm_2.weight",
                "experts_out_norm": "post_feedforward_layernorm_2.weight",
                **PER_LAYER_BRANCH,
            }
        ),
    },
    renamed=frozen(hidden_act="hidden_activation"),
    supported_keys=frozenset(
        {
            "sliding_window",
            "final_logit_softcapping",
            "use_bidirectional_attention",
            "num_experts",
            "moe_intermediate_size",
            "partial_rotary_factor",
        }
    ),
    defaults=frozen(
        max_position_embeddings=131_072,
        rms_norm_eps=1e-6,
        hidden_activation="gelu_pytorch_tanh",
        head_dim=256,
        num_key_value_heads=4,
        sliding_window=512,
        hidden_size_per_layer_input=256,
        vocab_size_per_layer_input=262_144,
        bos_token_id=2,
        eos_token_id=1,
        tie_word_embeddings=True,
    ),
)
GEMMA4: Mapping[str, Architecture] = {
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4UnifiedForCausalLM": replace(
        _GEMMA4,
        name="gemma4_unified",
        model_type="gemma4_unified_text",
        overrides=_unified,
        defaults=frozen(
            **{**_GEMMA4.defaults, "max_position_embeddings": 262_144, "sliding_window": 1024}
        ),
    ),
}
