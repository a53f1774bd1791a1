"""DeepSeek.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERTS,
    experts_of_width,
    first_dense,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    Fields,
    flag,
    integer,
    invalid,
    number,
)
from swiftchat.weights.architectures.parts.latent_readers import (
    LATENT_KEYS,
    LATENT_TENSORS,
    SPARSE_DEFAULTS,
    SPARSE_TENSORS,
    V3_KEYS,
    V3_SIZES,
    V3_TENSORS,
    deepseek_v32,
    latent_fields,
    v3_experts,
)
from swiftchat.weights.architectures.parts.router import RouterConfig


def _v2_router(config: Fields) -> RouterConfig:
    """Return a softmax router, whose groups count by their best score."""
    scale = number(config, "routed_scaling_factor", above=0.0, below=1e6)
    method = config.get("topk_method")
    if method == "greedy":
        return RouterConfig(scale=scale)
    if method != "group_limited_greedy":
        raise invalid("topk_method", "greedy or group_limited_greedy", method)
    experts = integer(config, "num_local_experts", 1, MAX_EXPERTS)
    groups = integer(config, "n_group", 1, MAX_EXPERTS)
    top_groups = integer(config, "topk_group", 1, groups)
    chosen = integer(config, "num_experts_per_tok", 1, experts)
    if experts % groups or top_groups * experts // groups < chosen:
        raise invalid("n_group", f"a divisor of {experts} that leaves {chosen} experts", groups)
    return RouterConfig(groups=groups, top_groups=top_groups, best_of_group=1, scale=scale)


def _deepseek_v2(config: Fields) -> Mapping[str, Any]:
    if flag(config, "mlp_bias"):
        raise invalid("mlp_bias", "false", True)
    return {
        **experts_of_width(config, _v2_router(config), "n_shared_experts"),
        **latent_fields(config, interleaved=True),
        "dense_layers": first_dense(config, "first_k_dense_replace"),
    }


def _deepseek_v3(config: Fields) -> Mapping[str, Any]:
    return {
        **v3_experts(config),
        **latent_fields(config, interleaved=flag(config, "rope_interleave")),
        "dense_layers": first_dense(config, "first_k_dense_replace"),
    }


_V2_TENSORS = llama_tensors({**LATENT_TENSORS, **EXPERTS, **SHARED_EXPERTS})


DEEPSEEK: Mapping[str, Architecture] = {
    "DeepseekV2ForCausalLM": Architecture(
        name="deepseek_v2",
        model_type="deepseek_v2",
        overrides=_deepseek_v2,
        supported_keys=MOE_KEYS | LATENT_KEYS,
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=_V2_TENSORS,
        defaults=frozen(
            **V3_SIZES,
            max_position_embeddings=2048,
            rms_norm_eps=1e-6,
            intermediate_size=11_008,
            moe_intermediate_size=1407,
            first_k_dense_replace=0,
            n_routed_experts=64,
            n_shared_experts=2,
            routed_scaling_factor=1.0,
            topk_method="greedy",
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "DeepseekV3ForCausalLM": Architecture(
        name="deepseek_v3",
        model_type="deepseek_v3",
        overrides=_deepseek_v3,
        supported_keys=V3_KEYS,
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=V3_TENSORS,
        defaults=frozen(
            **V3_SIZES,
            max_position_embeddings=4096,
            rms_norm_eps=1e-6,
            moe_intermediate_size=2048,
            first_k_dense_replace=3,
            n_routed_experts=256,
            n_shared_experts=1,
            num_experts_per_tok=8,
            n_group=8,
            topk_group=4,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
            rope_interleave=True,
            bos_token_id=0,
            eos_token_id=1,
        ),
    ),
    "DeepseekV32ForCausalLM": Architecture(
        name="deepseek_v32",
        model_type="deepseek_v32",
        overrides=deepseek_v32,
        supported_keys=V3_KEYS,
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=SPARSE_TENSORS,
        defaults=frozen(
            **V3_SIZES,
            **SPARSE_DEFAULTS,
            max_position_embeddings=163_840,
            rms_norm_eps=1e-6,
            index_n_heads=64,
            n_group=8,
            topk_group=4,
        ),
    ),
}
