"""More families whose layers are mixtures of experts, beside those like Llama's and Qwen3's.

Facts and defaults are those of the models' classes in transformers.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from swiftchat.weights.architectures import llama_like_fields
from swiftchat.weights.architectures.architecture import Architecture
from swiftchat.weights.architectures.tensor_names import FUSED_FFN, QWEN_EXPERTS, like_llama


def _frozen(**values: Any) -> Mapping[str, Any]:
    return MappingProxyType(values)


MIXTURE_FAMILIES: Mapping[str, Architecture] = MappingProxyType(
    {
        "Qwen2MoeForCausalLM": Architecture(
            name="qwen2_moe",
            model_type="qwen2_moe",
            facts=llama_like_fields.qwen2_moe,
            reads=frozenset({"num_local_experts", "num_experts", "moe_intermediate_size"}),
            fields=_frozen(num_local_experts="num_experts"),
            tensors=like_llama(
                {
                    **QWEN_EXPERTS,
                    "shared_router": "mlp.shared_expert_gate.weight",
                    "shared_gate": "mlp.shared_expert.gate_proj.weight",
                    "shared_up": "mlp.shared_expert.up_proj.weight",
                    "shared_down": "mlp.shared_expert.down_proj.weight",
                }
            ),
            defaults=_frozen(
                intermediate_size=5632,
                max_position_embeddings=32768,
                rms_norm_eps=1e-6,
                num_key_value_heads=16,
                sliding_window=4096,
                use_sliding_window=False,
                max_window_layers=28,
                qkv_bias=True,
                num_local_experts=60,
                num_experts_per_tok=4,
                moe_intermediate_size=1408,
                shared_expert_intermediate_size=5632,
                decoder_sparse_step=1,
            ),
        ),
        "GptOssForCausalLM": Architecture(
            name="gpt_oss",
            model_type="gpt_oss",
            facts=llama_like_fields.gpt_oss,
            reads=frozenset({"num_local_experts"}),
            tensors=like_llama(
                {
                    "sinks": "self_attn.sinks",
                    "router": "mlp.router.weight",
                    "router_bias": "mlp.router.bias",
                    "experts_gate_up": "mlp.experts.gate_up_proj",
                    "experts_gate_up_bias": "mlp.experts.gate_up_proj_bias",
                    "experts_down": "mlp.experts.down_proj",
                    "experts_down_bias": "mlp.experts.down_proj_bias",
                },
                without=(*FUSED_FFN, "down"),
            ),
            transposed=frozenset({"experts_gate_up", "experts_down"}),
            defaults=_frozen(
                max_position_embeddings=131_072,
                rms_norm_eps=1e-5,
                num_key_value_heads=8,
                head_dim=64,
                sliding_window=128,
                attention_bias=True,
                num_local_experts=128,
                num_experts_per_tok=4,
                swiglu_alpha=1.702,
                swiglu_limit=7.0,
                rope_theta=150_000.0,
                rope_scaling=_frozen(
                    rope_type="yarn",
                    factor=32.0,
                    beta_fast=32.0,
                    beta_slow=1.0,
                    truncate=False,
                    original_max_position_embeddings=4096,
                ),
            ),
        ),
    }
)
