"""Alibaba: Qwen.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERT,
    moe_overrides,
    sparse_dense_layers,
)
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
from swiftchat.weights.architectures.parts.mixer_readers import MAX_KERNEL, mixer_layers
from swiftchat.weights.architectures.parts.mixers import GatedDelta
from swiftchat.weights.architectures.parts.router import RouterConfig


def _uses_window(config: Fields) -> bool:
    return flag(config, "use_sliding_window") and config.get("sliding_window") is not None


def _late_window_layers(config: Fields) -> list[str] | None:
    """Layer types: a sliding window from layer `max_window_layers` on."""
    if not _uses_window(config):
        return None
    full = integer(config, "max_window_layers", 0, 2**30)
    return [
        "full_attention" if i < full else "sliding_attention" for i in range(num_layers(config))
    ]


def _qwen2(config: Fields) -> Mapping[str, Any]:
    return {
        "attention_bias": True,
        "output_bias": False,
        "mlp_bias": False,
        "layer_types": _late_window_layers(config),
    }


def _qwen3(config: Fields) -> Mapping[str, Any]:
    return {"mlp_bias": False, "qk_norm": "head", "layer_types": _late_window_layers(config)}


def _qwen3_moe(config: Fields) -> Mapping[str, Any]:
    return {
        **moe_overrides(config),
        "attention_bias": flag(config, "attention_bias"),
        "dense_layers": sparse_dense_layers(config),
        "expert_size": integer(config, "moe_intermediate_size", 1, MAX_WIDTH),
        "router": RouterConfig(normalized=flag(config, "norm_topk_prob")),
        "qk_norm": "head",
    }


def _qwen3_vl_moe(config: Fields) -> Mapping[str, Any]:
    return {**_qwen3_moe(config), "router": RouterConfig(normalized=True)}


def _qwen2_moe(config: Fields) -> Mapping[str, Any]:
    late = integer(config, "max_window_layers", 0, 2**30)
    # Unlike Qwen2: a window in every second layer before `max_window_layers`, none afterwards.
    kinds = [
        "full_attention" if i % 2 or i >= late else "sliding_attention"
        for i in range(num_layers(config))
    ]
    return {
        **_qwen3_moe(config),
        "qk_norm": None,
        "attention_bias": flag(config, "qkv_bias"),
        "output_bias": False,
        "shared_expert_gate": True,
        "shared_expert_size": integer(config, "shared_expert_intermediate_size", 1, MAX_WIDTH),
        "layer_types": kinds if _uses_window(config) else None,
    }


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


_DEFAULTS = frozen(
    max_position_embeddings=32768,
    rms_norm_eps=1e-6,
    num_key_value_heads=32,
    sliding_window=4096,
    use_sliding_window=False,
    max_window_layers=28,
)

_MOE_KEYS = frozenset({"num_local_experts", "num_experts", "moe_intermediate_size"})

_QWEN3_MOE_DEFAULTS = frozen(
    intermediate_size=6144,
    max_position_embeddings=32768,
    rms_norm_eps=1e-6,
    num_key_value_heads=4,
    use_sliding_window=False,
    num_local_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    decoder_sparse_step=1,
)

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

_HYBRID_DEFAULTS = frozen(
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


QWEN: Mapping[str, Architecture] = {
    "Qwen2ForCausalLM": Architecture(
        name="qwen2",
        model_type="qwen2",
        windowed=True,
        tensors=LLAMA_TENSORS,
        defaults=_DEFAULTS,
        overrides=_qwen2,
    ),
    "Qwen3ForCausalLM": Architecture(
        name="qwen3",
        model_type="qwen3",
        windowed=True,
        tensors=LLAMA_TENSORS,
        defaults=frozen(**_DEFAULTS, head_dim=128),
        overrides=_qwen3,
    ),
    "Qwen2MoeForCausalLM": Architecture(
        name="qwen2_moe",
        model_type="qwen2_moe",
        windowed=True,
        overrides=_qwen2_moe,
        supported_keys=_MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors({**EXPERTS, **SHARED_EXPERT}),
        defaults=frozen(
            **{**_DEFAULTS, "num_key_value_heads": 16},
            intermediate_size=5632,
            qkv_bias=True,
            num_local_experts=60,
            num_experts_per_tok=4,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
            decoder_sparse_step=1,
        ),
    ),
    "Qwen3MoeForCausalLM": Architecture(
        name="qwen3_moe",
        model_type="qwen3_moe",
        windowed=True,
        same_windows=True,
        overrides=_qwen3_moe,
        supported_keys=_MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(EXPERTS),
        defaults=_QWEN3_MOE_DEFAULTS,
    ),
    "Qwen3VLMoeTextForCausalLM": Architecture(
        name="qwen3_vl_moe",
        model_type="qwen3_vl_moe_text",
        overrides=_qwen3_vl_moe,
        supported_keys=_MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        transposed=frozenset({"experts_gate_up", "experts_down"}),
        tensors=llama_tensors(
            {
                "router": "mlp.gate.weight",
                "experts_gate_up": "mlp.experts.gate_up_proj",
                "experts_down": "mlp.experts.down_proj",
            }
        ),
        defaults=frozen(
            **{
                **_QWEN3_MOE_DEFAULTS,
                "num_key_value_heads": 16,
                "max_position_embeddings": 128_000,
            },
            rope_theta=5e5,
            tie_word_embeddings=True,
        ),
    ),
    "Qwen3NextForCausalLM": Architecture(
        name="qwen3_next",
        model_type="qwen3_next",
        overrides=_qwen3_next,
        supported_keys=MOE_KEYS | {"partial_rotary_factor"},
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors({**EXPERTS, **SHARED_EXPERT, **_MIXER, **_BY_KEY_HEAD}),
        defaults=frozen(
            **_HYBRID_DEFAULTS,
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
        defaults=frozen(**_HYBRID_DEFAULTS, num_key_value_heads=4),
    ),
    "Qwen3_5MoeForCausalLM": Architecture(
        name="qwen3_5_moe",
        model_type="qwen3_5_moe_text",
        overrides=_qwen3_5_moe,
        supported_keys=MOE_KEYS | {"partial_rotary_factor"},
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors({**EXPERTS, **SHARED_EXPERT, **_MIXER, **_SEPARATE}),
        defaults=frozen(
            **_HYBRID_DEFAULTS, **_EXPERT_DEFAULTS, num_local_experts=256, num_experts_per_tok=8
        ),
    ),
}
