"""Qwen2, Qwen3 and their mixture-of-experts variants.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.moe import moe_overrides
from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_WIDTH,
    Fields,
    flag,
    integer,
    invalid,
    num_layers,
)
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


def sparse_dense_layers(config: Fields) -> frozenset[int]:
    """Return the layers with a plain MLP: all but every n-th, and those in `mlp_only_layers`."""
    count, step = num_layers(config), integer(config, "decoder_sparse_step", 1, 2**30)
    listed = config.get("mlp_only_layers")
    listed = [] if listed is None else listed
    if not isinstance(listed, list) or len(listed) > count:
        raise invalid("mlp_only_layers", f"a list of at most {count} numbers", listed)
    dense = {integer({"mlp_only_layers": i}, "mlp_only_layers", 0, count - 1) for i in listed}
    return frozenset(dense | {i for i in range(count) if (i + 1) % step})


_DEFAULTS = frozen(
    max_position_embeddings=32768,
    rms_norm_eps=1e-6,
    num_key_value_heads=32,
    sliding_window=4096,
    use_sliding_window=False,
    max_window_layers=28,
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
    # The language model of Qwen3-VL has the experts of a layer in one tensor, transposed.
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
}
