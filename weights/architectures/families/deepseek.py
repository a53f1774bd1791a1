"""DeepSeek."""

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERTS,
    first_dense,
)
from swiftchat.weights.architectures.parts.fields import MAX_EXPERTS, flag, integer, invalid, number
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.latent_readers import (
    LATENT_KEYS,
    LATENT_TENSORS,
    SPARSE_DEFAULTS,
    SPARSE_TENSORS,
    V3_KEYS,
    V3_SIZES,
    V3_TENSORS,
    latent_attention,
    sparse_model,
    v3_moe,
)
from swiftchat.weights.architectures.parts.layers import sparse
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def _v2_router(keys: Keys) -> RouterConfig:
    """Return a softmax router, whose groups count by their best score."""
    scale = number(keys, "routed_scaling_factor", above=0.0, below=1e6)
    method = keys.get("topk_method")
    if method == "greedy":
        return RouterConfig(scale=scale)
    if method != "group_limited_greedy":
        raise invalid("topk_method", "greedy or group_limited_greedy", method)
    experts = keys.num_experts
    groups = integer(keys, "n_group", 1, MAX_EXPERTS)
    top_groups = integer(keys, "topk_group", 1, groups)
    chosen = integer(keys, "num_experts_per_tok", 1, experts)
    if experts % groups or top_groups * experts // groups < chosen:
        raise invalid("n_group", f"a divisor of {experts} that leaves {chosen} experts", groups)
    return RouterConfig(groups=groups, top_groups=top_groups, best_of_group=1, scale=scale)


def _deepseek_v2(keys: Keys) -> ModelConfig:
    if flag(keys, "mlp_bias"):
        raise invalid("mlp_bias", "false", True)
    layers = keys.layers(attention=latent_attention(keys, interleaved=True))
    moe = keys.moe(_v2_router(keys), shared="n_shared_experts")
    return keys.model(sparse(layers, moe, first_dense(keys, "first_k_dense_replace")))


def _deepseek_v3(keys: Keys) -> ModelConfig:
    attention = latent_attention(keys, interleaved=flag(keys, "rope_interleave"))
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    return keys.model(sparse(layers, v3_moe(keys), first_dense(keys, "first_k_dense_replace")))


def _deepseek_v32(keys: Keys) -> ModelConfig:
    return sparse_model(keys, interleaved=False)


_V2_TENSORS = llama_tensors({**LATENT_TENSORS, **EXPERTS, **SHARED_EXPERTS})


ARCHITECTURES: Architectures = {
    "DeepseekV2ForCausalLM": Architecture(
        model_type="deepseek_v2",
        build=_deepseek_v2,
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
        model_type="deepseek_v3",
        build=_deepseek_v3,
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
        model_type="deepseek_v32",
        build=_deepseek_v32,
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
