"""Model types that share a class of transformers with another, with defaults and keys of their own.

`model_type` decides: the class is the same, the configuration is not.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from swiftchat.weights.architectures.parts.architecture import Architecture, frozen
from swiftchat.weights.architectures.registry import ARCHITECTURES


def _variant(
    class_name: str, renamed: Mapping[str, str] = frozen(), **defaults: Any
) -> tuple[str, Architecture]:
    base = ARCHITECTURES[class_name]
    changed = replace(
        base,
        defaults=frozen(**{**base.defaults, **defaults}),
        renamed=frozen(**{**base.renamed, **renamed}),
    )
    return class_name, changed


_LLAMA, _GLM, _DEEPSEEK = "LlamaForCausalLM", "Glm4MoeForCausalLM", "DeepseekV3ForCausalLM"
# The class and its architecture, by `model_type`.
VARIANTS: Mapping[str, tuple[str, Architecture]] = MappingProxyType(
    {
        "exaone": _variant(
            _LLAMA,
            frozen(
                num_hidden_layers="num_layers",
                rms_norm_eps="layer_norm_epsilon",
                hidden_act="activation_function",
            ),
            max_position_embeddings=4096,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            rope_theta=500_000.0,
            eos_token_id=361,
        ),
        "internlm3": _variant(
            _LLAMA,
            frozen(attention_bias="qkv_bias", mlp_bias="bias"),
            max_position_embeddings=32_768,
            rms_norm_eps=1e-5,
            num_key_value_heads=2,
        ),
        "iquestcoder": _variant(
            _LLAMA, max_position_embeddings=131_072, rms_norm_eps=1e-5, num_key_value_heads=8
        ),
        "sarvam_moe": _variant(
            _GLM,
            frozen(
                num_local_experts="n_routed_experts",
                n_routed_experts="num_experts",
                n_shared_experts="num_shared_experts",
                attention_bias="use_qkv_bias",
            ),
            intermediate_size=8192,
            moe_intermediate_size=1024,
            num_key_value_heads=4,
            head_dim=64,
            num_experts_per_tok=6,
            routed_scaling_factor=2.5,
            rms_norm_eps=1e-6,
            rope_theta=8_000_000.0,
            partial_rotary_factor=1.0,
            use_qk_norm=True,
            eos_token_id=1,
        ),
        "sarvam_mla": _variant(
            _DEEPSEEK,
            num_key_value_heads=64,
            n_routed_experts=128,
            q_lora_rank=None,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
        ),
    }
)
# The class by `model_type`, for files that name none or an unknown one.
CLASS_OF_TYPE: Mapping[str, str] = MappingProxyType(
    {architecture.model_type: name for name, architecture in ARCHITECTURES.items()}
    | {
        kind: name
        for kind, (name, _) in VARIANTS.items()
        if kind not in {architecture.model_type for architecture in ARCHITECTURES.values()}
    }
)
