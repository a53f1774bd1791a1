"""Google: Gemma 4."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import Attention, HeadNorms, Values
from swiftchat.weights.architectures.parts.embeddings import Embeddings, PerLayerEmbeddings
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_EXPERTS,
    MAX_VOCAB,
    MAX_WIDTH,
    flag,
    integer,
    invalid,
    mapping,
    optional_integer,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layer_readers import every_nth_full
from swiftchat.weights.architectures.parts.layers import LayerConfig
from swiftchat.weights.architectures.parts.mlp import Moe
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import rope_of_kind
from swiftchat.weights.architectures.parts.router import RouterConfig


def _gemma4(keys: Keys) -> ModelConfig:
    name = "use_bidirectional_attention"
    if keys.get(name) not in (None, False, "vision"):
        raise invalid(name, "absent or vision", keys[name])
    kinds = [*layer_kinds(keys, 6)[:-1], "full_attention"]
    sources = kv_sources(keys, kinds)
    size, is_wide = keys.intermediate_size, flag(keys, "use_double_wide_mlp")
    moe = _experts(keys) if flag(keys, "enable_moe_block") else None
    layers = tuple(
        LayerConfig(
            attention,
            mlp=keys.mlp(
                intermediate_size=2 * size if is_wide and source is not None else size, bias=False
            ),
            moe=moe,
            norm_order="sandwich",
            has_scale=True,
        )
        for attention, source in zip(_attentions(keys, kinds, sources), sources, strict=True)
    )
    return keys.model(layers, embeddings=gemma4_embeddings(keys))


def _attentions(keys: Keys, kinds: Sequence[str], sources: Sequence[int | None]) -> list[Attention]:
    """Return the attention of each layer; layers of one kind have heads of one size."""
    heads = _heads(keys, kinds)
    head_dims = {kind: head_dim for kind, (head_dim, _) in zip(kinds, heads, strict=True)}
    for layer, (kind, (head_dim, _)) in enumerate(zip(kinds, heads, strict=True)):
        if head_dim != head_dims[kind]:
            expected = f"that of other layers of its kind, {head_dims[kind]}"
            raise invalid(f"head_dim of layer {layer}", expected, head_dim)
    ropes = {kind: rope_of_kind(keys, _ROPES, kind, dim) for kind, dim in head_dims.items()}
    window = None
    if "sliding_attention" in kinds:
        window = integer(keys, "sliding_window", 1, MAX_CONTEXT)
    as_values = flag(keys, "attention_k_eq_v")
    found = []
    for kind, (head_dim, kv_heads), source in zip(kinds, heads, sources, strict=True):
        is_full = kind == "full_attention"
        are_keys = as_values and is_full and source is None
        attention = keys.attention(
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            values=Values(head_dim, normalized=True, are_keys=are_keys),
            scores=keys.scores(scale=1.0, window=None if is_full else window),
            rope=ropes[kind],
            head_norms=HeadNorms("head"),
            kv_source=source,
        )
        found.append(attention)
    return found


def layer_kinds(keys: Keys, pattern: int) -> list[str]:
    """Return the kind of attention of each layer; without the key every `pattern`-th is full."""
    count, kinds = keys.num_layers, keys.layer_types
    if kinds is None:
        kinds = every_nth_full(keys, pattern)
    if len(kinds) != count or {*kinds} - {"full_attention", "sliding_attention"}:
        raise invalid("layer_types", f"{count} times full_attention or sliding_attention", kinds)
    return kinds


def kv_sources(keys: Keys, kinds: Sequence[str]) -> tuple[int | None, ...]:
    """Return the layer whose keys and values each layer reads; None: its own.

    The last `num_kv_shared_layers` read those of the last layer of their kind before them.
    """
    count = len(kinds)
    shared = optional_integer(keys, "num_kv_shared_layers", 0, count - 1) or 0
    own = count - shared
    last = {kind: i for i, kind in enumerate(kinds[:own])}
    if {*kinds[own:]} - last.keys():
        raise invalid(
            "num_kv_shared_layers", "less, so that each has a layer of its kind before", shared
        )
    return (None,) * own + tuple(last[kind] for kind in kinds[own:])


def gemma4_embeddings(keys: Keys) -> Embeddings:
    """Return the embeddings, also those for each layer, which have a width of 0 if absent."""
    width, per_layer = optional_integer(keys, "hidden_size_per_layer_input", 0, MAX_WIDTH), None
    if width:
        ids = integer(keys, "vocab_size_per_layer_input", 1, MAX_VOCAB)
        per_layer = PerLayerEmbeddings(width, ids)
    return keys.embeddings(scale=keys.hidden_size**0.5, per_layer=per_layer)


def _heads(keys: Keys, kinds: Sequence[str]) -> list[tuple[int, int]]:
    """Return the elements of a head and the key heads of all layers.

    `per_layer_config` replaces the older keys of full ones.
    """
    full = {"head_dim": keys.get("global_head_dim", 512)}
    if flag(keys, "attention_k_eq_v") and keys.get("num_global_key_value_heads") is not None:
        full["num_key_value_heads"] = keys["num_global_key_value_heads"]
    changes = {str(i): full for i, kind in enumerate(kinds) if kind == "full_attention"}
    by_layer = _by_layer(keys)
    found, heads = changes if by_layer is None else by_layer, []
    for i in range(len(kinds)):
        own = mapping(found, str(i)) or {}
        if own.keys() - {*_HEAD_KEYS}:
            raise invalid("per_layer_config", f"only {', '.join(_HEAD_KEYS)}", sorted(own)[0])
        of_layer = keys.changed(**own)
        heads.append((of_layer.head_dim, of_layer.num_kv_heads))
    return heads


def _by_layer(keys: Keys) -> dict[str, Any] | None:
    """Return `per_layer_config` by the number of the layer, which transformers pads with zeros."""
    found = mapping(keys, "per_layer_config")
    if found is None:
        return None
    count = keys.num_layers
    numbers = {name: name.lstrip("0") or "0" for name in found if name}
    known = {str(i) for i in range(count)}
    for name in found:
        if numbers.get(name) not in known:
            raise invalid("per_layer_config", f"by numbers of {count} layers", name)
    if len({*numbers.values()}) < len(numbers):
        raise invalid("per_layer_config", "with one entry for each layer", sorted(found)[0])
    return {numbers[name]: value for name, value in found.items()}


def _experts(keys: Keys) -> Moe:
    count = integer(keys, "num_experts", 1, MAX_EXPERTS)
    return keys.moe(
        RouterConfig(normalized=True),
        num_experts=count,
        experts_per_token=integer(keys, "top_k_experts", 1, count),
    )


def _unified(keys: Keys) -> ModelConfig:
    return _gemma4(keys.changed(hidden_size_per_layer_input=0, enable_moe_block=False))


_HEAD_KEYS = ("head_dim", "num_key_value_heads")


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

_GEMMA4 = Architecture(
    model_type="gemma4_text",
    short_name="gemma4",
    build=_gemma4,
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


ARCHITECTURES: Architectures = {
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4UnifiedForCausalLM": replace(
        _GEMMA4,
        model_type="gemma4_unified_text",
        short_name="gemma4_unified",
        build=_unified,
        defaults=frozen(
            **{**_GEMMA4.defaults, "max_position_embeddings": 262_144, "sliding_window": 1024}
        ),
    ),
}
