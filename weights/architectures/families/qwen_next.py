"""Qwen3-Next, Qwen3.5 and Qwen3.6: gated DeltaNet, and gated attention in every fourth layer.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.lfm2 import MAX_KERNEL, mixer_layers
from swiftchat.weights.architectures.families.moe import MOE_KEYS, moe_overrides
from swiftchat.weights.architectures.families.qwen import (
    EXPERTS,
    SHARED_EXPERT,
    sparse_dense_layers,
)
from swiftchat.weights.architectures.parts.architecture import Architecture, frozen, llama_tensors
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
    flag,
    integer,
    invalid,
    layer_types,
    num_layers,
    number,
)
from swiftchat.weights.architectures.parts.mixers import GatedDelta
from swiftchat.weights.architectures.parts.router import RouterConfig


def _hybrid(config: Fields, *, by_key_head: bool) -> Mapping[str, Any]:
    """Return the fields of both kinds of layers."""
    kinds = layer_types(config)
    if kinds is None:
        interval = integer(config, "full_attention_interval", 1, MAX_LAYERS)
        kinds = [
            "linear_attention" if (i + 1) % interval else "full_attention"
            for i in range(num_layers(config))
        ]
    keys = integer(config, "linear_num_key_heads", 1, MAX_HEADS)
    values = integer(config, "linear_num_value_heads", 1, MAX_HEADS)
    if values % keys:
        raise invalid("linear_num_value_heads", f"a multiple of {keys} key heads", values)
    mixer = GatedDelta(
        num_key_heads=keys,
        num_value_heads=values,
        key_dim=integer(config, "linear_key_head_dim", 1, MAX_HEAD_DIM),
        value_dim=integer(config, "linear_value_head_dim", 1, MAX_HEAD_DIM),
        kernel=integer(config, "linear_conv_kernel_dim", 2, MAX_KERNEL),
        norm_eps=number(config, "rms_norm_eps", above=0.0, below=1.0),
        by_key_head=by_key_head,
    )
    return {
        "mlp_bias": False,
        "qk_norm": "head",
        "attention_gate": True,
        "norm_unit_offset": True,
        "mixer": mixer,
        "mixer_layers": mixer_layers(config, kinds, "linear_attention"),
    }


def _experts(config: Fields, *, normalized: bool) -> Mapping[str, Any]:
    width = integer(config, "moe_intermediate_size", 1, MAX_WIDTH)
    return {
        **moe_overrides({**config, "intermediate_size": width}),
        "attention_bias": flag(config, "attention_bias"),
        "router": RouterConfig(normalized=normalized),
        "shared_expert_gate": True,
        "shared_expert_size": integer(config, "shared_expert_intermediate_size", 1, MAX_WIDTH),
    }


def _qwen3_next(config: Fields) -> Mapping[str, Any]:
    hybrid = _hybrid(config, by_key_head=True)
    if config.get("num_local_experts") == 0:
        return hybrid
    return {
        **_experts(config, normalized=flag(config, "norm_topk_prob")),
        **hybrid,
        "dense_layers": sparse_dense_layers(config),
    }


def _qwen3_5(config: Fields) -> Mapping[str, Any]:
    return _hybrid(config, by_key_head=False)


def _qwen3_5_moe(config: Fields) -> Mapping[str, Any]:
    experts = _experts(config, normalized=True)
    return {**experts, **_qwen3_5(config), "intermediate_size": experts["expert_size"]}


_MIXER = {
    "mixer_conv": "linear_attn.conv1d.weight",
    "mixer_decay": "linear_attn.A_log",
    "mixer_step_bias": "linear_attn.dt_bias",
    "mixer_norm": "linear_attn.norm.weight",
    "mixer_out": "linear_attn.out_proj.weight",
}
_BY_KEY_HEAD = {
    "mixer_qkvz": "linear_attn.in_proj_qkvz.weight",
    "mixer_ba": "linear_attn.in_proj_ba.weight",
}
_SEPARATE = {
    "mixer_qkv": "linear_attn.in_proj_qkv.weight",
    "mixer_z": "linear_attn.in_proj_z.weight",
    "mixer_b": "linear_attn.in_proj_b.weight",
    "mixer_a": "linear_attn.in_proj_a.weight",
}
_DEFAULTS = frozen(
    max_position_embeddings=32_768,
    rms_norm_eps=1e-6,
    head_dim=256,
    partial_rotary_factor=0.25,
    full_attention_interval=4,
    linear_conv_kernel_dim=4,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
)
_EXPERT_DEFAULTS = frozen(
    num_key_value_heads=2,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
)

QWEN_NEXT: Mapping[str, Architecture] = {
    "Qwen3NextForCausalLM": Architecture(
        name="qwen3_next",
        model_type="qwen3_next",
        overrides=_qwen3_next,
        supported_keys=MOE_KEYS | {"partial_rotary_factor"},
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors({**EXPERTS, **SHARED_EXPERT, **_MIXER, **_BY_KEY_HEAD}),
        defaults=frozen(
            **_DEFAULTS,
            **_EXPERT_DEFAULTS,
            intermediate_size=5632,
            num_local_experts=512,
            num_experts_per_tok=10,
            decoder_sparse_step=1,
            norm_topk_prob=True,
        ),
    ),
    "Qwen3_5ForCausalLM": Architecture(
        name="qwen3_5",
        model_type="qwen3_5_text",
        overrides=_qwen3_5,
        supported_keys=frozenset({"partial_rotary_factor"}),
        tensors=llama_tensors({**_MIXER, **_SEPARATE}),
        defaults=frozen(**_DEFAULTS, num_key_value_heads=4),
    ),
    "Qwen3_5MoeForCausalLM": Architecture(
        name="qwen3_5_moe",
        model_type="qwen3_5_moe_text",
        overrides=_qwen3_5_moe,
        supported_keys=MOE_KEYS | {"partial_rotary_factor"},
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors({**EXPERTS, **SHARED_EXPERT, **_MIXER, **_SEPARATE}),
        defaults=frozen(
            **_DEFAULTS, **_EXPERT_DEFAULTS, num_local_experts=256, num_experts_per_tok=8
        ),
    ),
}
