"""Liquid AI: LFM.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import MOE_KEYS, experts_of_width
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_HEAD_DIM,
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    layer_types,
    num_layers,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.mixer_readers import MAX_KERNEL, mixer_layers
from swiftchat.weights.architectures.parts.mixers import ShortConv
from swiftchat.weights.architectures.parts.rope import rope_of_kind
from swiftchat.weights.architectures.parts.router import RouterConfig


def _lfm2_layers(config: Fields) -> Mapping[str, Any]:
    kinds, count = layer_types(config), num_layers(config)
    if kinds is None and config.get("model_type") != "lfm2_moe":
        full = config.get("full_attn_idxs")
        full = list(range(count)) if full is None else full
        if not isinstance(full, list):
            raise invalid("full_attn_idxs", "a list of layers", full)
        kinds = ["full_attention" if i in full else "conv" for i in range(count)]
    layers = mixer_layers(config, kinds, "conv")
    kernel = integer(config, "conv_L_cache", 2, MAX_KERNEL)
    tied = "tie_word_embeddings" if config.get("tie_embedding") is None else "tie_embedding"
    return {
        "activation": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "qk_norm": "head",
        "tied_embeddings": flag(config, tied),
        "mixer": ShortConv(hidden_size(config), kernel, flag(config, "conv_bias")),
        "mixer_layers": layers,
    }


def _lfm2(config: Fields) -> Mapping[str, Any]:
    name = "intermediate_size" if config.get("block_ff_dim") is None else "block_ff_dim"
    width = integer(config, name, 1, MAX_WIDTH)
    if flag(config, "block_auto_adjust_ff_dim"):
        width = int(2 * width / 3)
        if config.get("block_ffn_dim_multiplier") is not None:
            multiplier = number(config, "block_ffn_dim_multiplier", above=0.0, below=1e3)
            step = integer(config, "block_multiple_of", 1, MAX_WIDTH)
            width = -(-int(multiplier * width) // step) * step
    return {**_lfm2_layers(config), "intermediate_size": width}


def _lfm2_moe(config: Fields) -> Mapping[str, Any]:
    router = RouterConfig(
        "sigmoid",
        correction=flag(config, "use_expert_bias"),
        normalized=flag(config, "norm_topk_prob"),
        eps=1e-6,
        scale=number(config, "routed_scaling_factor", above=0.0, below=1e6),
    )
    dense = integer(config, "num_dense_layers", 0, MAX_LAYERS)
    return {
        **experts_of_width(config, router, None),
        **_lfm2_layers(config),
        "dense_layers": frozenset(range(min(dense, num_layers(config)))),
    }


def _lfm3(config: Fields) -> Mapping[str, Any]:
    kinds, count = layer_types(config), num_layers(config)
    if kinds is None:
        others = {0: "sliding_attention", 2: "full_attention"}
        kinds = ["conv", *(others.get(i % 4, "conv") for i in range(1, count))]
    full = frozenset(i for i, kind in enumerate(kinds) if kind == "full_attention")
    window, windowed = None, "sliding_attention" in kinds
    if windowed:
        window = optional_integer(config, "sliding_window", 1, MAX_CONTEXT)
    if windowed and window is None:
        raise invalid("sliding_window", "a number, as layer_types has sliding_attention", "none")
    attention = ["full_attention" if kind == "sliding_attention" else kind for kind in kinds]
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    return {
        "activation": "silu",
        "attention_bias": flag(config, "attention_bias"),
        "mlp_bias": False,
        "qk_norm": "head",
        "norm_order": "sandwich" if flag(config, "use_sandwich_norm") else "pre",
        "attention_gate": flag(config, "use_attention_gate"),
        "gate_by_head": flag(config, "use_attention_gate"),
        "rope": rope_of_kind(config, _LFM3_ROPES, "full_attention", head_dim),
        "local_rope": rope_of_kind(config, _LFM3_ROPES, "sliding_attention", head_dim),
        "sliding_window": window,
        "full_layers": full if windowed else frozenset(),
        "mixer": ShortConv(
            hidden_size(config),
            integer(config, "conv_L_cache", 2, MAX_KERNEL),
            flag(config, "conv_bias"),
        ),
        "mixer_layers": mixer_layers(config, attention, "conv"),
    }


_LFM3_ROPES = frozen(
    full_attention=frozen(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.5),
    sliding_attention=frozen(rope_type="default", rope_theta=1e4),
)

_TENSORS = {
    "final_norm": "model.embedding_norm.weight",
    "o": "self_attn.out_proj.weight",
    "q_norm": "self_attn.q_layernorm.weight",
    "k_norm": "self_attn.k_layernorm.weight",
    "attn_norm": "operator_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "feed_forward.w1.weight",
    "up": "feed_forward.w3.weight",
    "down": "feed_forward.w2.weight",
    "mixer_in": "conv.in_proj.weight",
    "mixer_in_bias": "conv.in_proj.bias",
    "mixer_conv": "conv.conv.weight",
    "mixer_conv_bias": "conv.conv.bias",
    "mixer_out": "conv.out_proj.weight",
    "mixer_out_bias": "conv.out_proj.bias",
}

_LLAMA_NAMES = ("o", "q_norm", "k_norm")  # which LFM3 has

_EXPERTS = {
    "router": "feed_forward.gate.weight",
    "router_correction": "feed_forward.expert_bias",
    "expert_gate": "feed_forward.experts.{e}.w1.weight",
    "expert_up": "feed_forward.experts.{e}.w3.weight",
    "expert_down": "feed_forward.experts.{e}.w2.weight",
}

_DEFAULTS = frozen(
    max_position_embeddings=128_000,
    norm_eps=1e-5,
    num_key_value_heads=8,
    rope_theta=1e6,
    tie_word_embeddings=True,
    conv_L_cache=3,
    bos_token_id=1,
    eos_token_id=2,
)


LIQUID: Mapping[str, Architecture] = {
    "Lfm2ForCausalLM": Architecture(
        name="lfm2",
        model_type="lfm2",
        overrides=_lfm2,
        renamed=frozen(rms_norm_eps="norm_eps"),
        tensors=llama_tensors(_TENSORS),
        defaults=frozen(
            **_DEFAULTS,
            intermediate_size=12_288,
            block_auto_adjust_ff_dim=True,
            block_ffn_dim_multiplier=1.0,
            block_multiple_of=256,
        ),
    ),
    "Lfm3ForCausalLM": Architecture(
        name="lfm3",
        model_type="lfm3",
        overrides=_lfm3,
        supported_keys=frozenset({"sliding_window"}),
        renamed=frozen(rms_norm_eps="norm_eps"),
        tensors=llama_tensors(
            {
                **{name: rest for name, rest in _TENSORS.items() if name not in _LLAMA_NAMES},
                "attn_gate": "self_attn.gate_proj.weight",
                "attn_out_norm": "post_operator_norm.weight",
                "mlp_out_norm": "post_ffn_norm.weight",
            }
        ),
        defaults=frozen(
            max_position_embeddings=128_000,
            norm_eps=1e-5,
            num_key_value_heads=4,
            head_dim=128,
            intermediate_size=7680,
            sliding_window=256,
            tie_word_embeddings=True,
            conv_L_cache=7,
            use_sandwich_norm=True,
            use_attention_gate=True,
            bos_token_id=124_894,
            eos_token_id=124_900,
        ),
    ),
    "Lfm2MoeForCausalLM": Architecture(
        name="lfm2_moe",
        model_type="lfm2_moe",
        overrides=_lfm2_moe,
        supported_keys=MOE_KEYS,
        renamed=frozen(rms_norm_eps="norm_eps", num_local_experts="num_experts"),
        tensors=llama_tensors({**_TENSORS, **_EXPERTS}),
        defaults=frozen(
            **_DEFAULTS,
            intermediate_size=7168,
            moe_intermediate_size=1792,
            num_local_experts=32,
            num_experts_per_tok=4,
            num_dense_layers=2,
            use_expert_bias=True,
            norm_topk_prob=True,
            routed_scaling_factor=1.0,
        ),
    ),
}
