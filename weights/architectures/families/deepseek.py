"""Models with multi-head latent attention: DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash and others.

Defaults and overrides are those of the model classes in transformers.
"""

import math
from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.moe import (
    MOE_KEYS,
    SHARED_EXPERTS,
    experts_of_width,
    listed_dense,
)
from swiftchat.weights.architectures.families.qwen import EXPERTS
from swiftchat.weights.architectures.families.sigmoid_routers import first_dense, sigmoid_router
from swiftchat.weights.architectures.parts.architecture import Architecture, frozen, llama_tensors
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    mapping,
    num_heads,
    num_layers,
    number,
    optional_integer,
    optional_number,
    without_keys,
)
from swiftchat.weights.architectures.parts.latent import LatentAttention
from swiftchat.weights.architectures.parts.rope import QueryGrowth, RopeConfig, yarn_magnitude
from swiftchat.weights.architectures.parts.router import RouterConfig


def latent_fields(config: Fields, *, interleaved: bool) -> dict[str, Any]:
    """Return the fields of the attention; `interleaved`: rotated pairs are neighbors."""
    heads = num_heads(config)
    kv_heads = optional_integer(config, "num_key_value_heads", 1, MAX_HEADS)
    if kv_heads not in (None, heads):
        raise invalid("num_key_value_heads", f"{heads}, as num_attention_heads", kv_heads)
    latent = LatentAttention(
        kv_rank=integer(config, "kv_lora_rank", 1, MAX_WIDTH),
        q_rank=optional_integer(config, "q_lora_rank", 1, MAX_WIDTH),
        nope_dim=integer(config, "qk_nope_head_dim", 1, MAX_HEAD_DIM),
        rope_dim=integer(config, "qk_rope_head_dim", 2, MAX_HEAD_DIM),
        value_dim=integer(config, "v_head_dim", 1, MAX_HEAD_DIM),
        interleaved=interleaved,
    )
    if latent.rope_dim % 2:
        raise invalid("qk_rope_head_dim", "an even number", latent.rope_dim)
    bias = flag(config, "attention_bias")
    return {
        "latent": latent,
        "num_kv_heads": heads,
        "head_dim": latent.head_dim,
        "rope": RopeConfig.from_hf(config, latent.rope_dim),
        "query_scalar": latent.head_dim / _score_scale(config) ** 2,
        "attention_bias": bias,
        "output_bias": bias,
    }


def _score_scale(config: Fields) -> float:
    """Return the factor of attention scores that scaled rotary embeddings bring."""
    rope = mapping(config, "rope_scaling") or mapping(config, "rope_parameters") or {}
    if rope.get("rope_type", rope.get("type", "default")) in ("default", None):
        return 1.0
    scale = optional_number(rope, "mscale_all_dim", above=-1e-9, below=1e3)
    if not scale:
        return 1.0
    return yarn_magnitude(number(rope, "factor", above=0.0, below=1e6), scale) ** 2


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


def v3_experts(config: Fields) -> Mapping[str, Any]:
    """Return the fields of DeepSeek-V3's experts and their router."""
    router = sigmoid_router(
        config, normalized=flag(config, "norm_topk_prob"), scale="routed_scaling_factor"
    )
    return experts_of_width(config, router, "n_shared_experts")


def _deepseek_v3(config: Fields) -> Mapping[str, Any]:
    return {
        **v3_experts(config),
        **latent_fields(config, interleaved=flag(config, "rope_interleave")),
        "dense_layers": first_dense(config, "first_k_dense_replace"),
    }


def _glm4_moe_lite(config: Fields) -> Mapping[str, Any]:
    return {
        **v3_experts(config),
        **latent_fields(config, interleaved=flag(config, "rope_interleave")),
        "dense_layers": listed_dense(config, 1),
    }


def _youtu(config: Fields) -> Mapping[str, Any]:
    return {**latent_fields(config, interleaved=flag(config, "rope_interleave")), "mlp_bias": False}


def _minicpm3(config: Fields) -> Mapping[str, Any]:
    if config.get("v_head_dim") is None:
        config = {**config, "v_head_dim": hidden_size(config) // num_heads(config)}
    return {**latent_fields(config, interleaved=False), **minicpm_multipliers(config)}


def minicpm_multipliers(config: Fields) -> Mapping[str, Any]:
    """Return the scales of embeddings, residuals and logits of all MiniCPM models."""
    depth = optional_number(config, "scale_depth", above=0.0, below=1e6)
    base = optional_number(config, "dim_model_base", above=0.0, below=1e9)
    residual = 1.0 if depth is None else depth / math.sqrt(num_layers(config))
    return {
        "embedding_scale": number(config, "scale_emb", above=0.0, below=1e6),
        "residual_scale": residual,
        "norm_eps": number(config, "rms_norm_eps", above=0.0, below=1.0) / residual**2,
        "logit_scale": 1.0 if base is None else base / hidden_size(config),
    }


_MISTRAL4_ROPE = frozen(
    rope_type="yarn",
    rope_theta=10_000.0,
    factor=128.0,
    original_max_position_embeddings=8192,
    beta_fast=32.0,
    beta_slow=1.0,
    mscale_all_dim=1.0,
    mscale=1.0,
    llama_4_scaling_beta=0.1,
)


def _mistral4(config: Fields) -> Mapping[str, Any]:
    if config.get("rope_parameters") is None and config.get("rope_scaling") is None:
        config = {**config, "rope_parameters": _MISTRAL4_ROPE}
    # The rotated fraction of a head is that of its sizes.
    config = without_keys(config, ("partial_rotary_factor",))
    rope = mapping(config, "rope_scaling") or mapping(config, "rope_parameters") or {}
    beta = number(rope, "llama_4_scaling_beta", above=0.0, below=1e6)
    name = "original_max_position_embeddings"
    fields = config if config.get(name) is not None else rope
    tokens = number(fields, name, above=0.0, below=1e9)
    sigmoid = sigmoid_router(
        config, normalized=flag(config, "norm_topk_prob"), scale="routed_scaling_factor"
    )
    router = RouterConfig(
        groups=sigmoid.groups,
        top_groups=sigmoid.top_groups,
        normalized=sigmoid.normalized,
        eps=sigmoid.eps,
        scale=sigmoid.scale,
    )
    return {
        **experts_of_width(config, router, "n_shared_experts"),
        **latent_fields(config, interleaved=flag(config, "rope_interleave")),
        "dense_layers": first_dense(config, "first_k_dense_replace"),
        "query_growth": QueryGrowth(beta, tokens),
    }


LATENT_TENSORS = frozen(
    q_a="self_attn.q_a_proj.weight",
    q_a_bias="self_attn.q_a_proj.bias",
    q_a_norm="self_attn.q_a_layernorm.weight",
    q_b="self_attn.q_b_proj.weight",
    kv_a="self_attn.kv_a_proj_with_mqa.weight",
    kv_a_bias="self_attn.kv_a_proj_with_mqa.bias",
    kv_a_norm="self_attn.kv_a_layernorm.weight",
    kv_b="self_attn.kv_b_proj.weight",
)
CORRECTION = frozen(router_correction="mlp.gate.e_score_correction_bias")
_DENSE_TENSORS = llama_tensors(LATENT_TENSORS)
_V2_TENSORS = llama_tensors({**LATENT_TENSORS, **EXPERTS, **SHARED_EXPERTS})
_MISTRAL4_TENSORS = llama_tensors(
    {
        **LATENT_TENSORS,
        **SHARED_EXPERTS,
        "router": "mlp.gate.weight",
        "experts_gate_up": "mlp.experts.gate_up_proj",
        "experts_down": "mlp.experts.down_proj",
    }
)
_V3_TENSORS = llama_tensors({**LATENT_TENSORS, **EXPERTS, **SHARED_EXPERTS, **CORRECTION})
LATENT_KEYS = frozenset({"kv_lora_rank", "q_lora_rank"})
V3_KEYS = MOE_KEYS | LATENT_KEYS | {"rope_interleave"}
V3_SIZES = frozen(
    kv_lora_rank=512,
    q_lora_rank=1536,
    qk_rope_head_dim=64,
    qk_nope_head_dim=128,
    v_head_dim=128,
)

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
        tensors=_V3_TENSORS,
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
    "Glm4MoeLiteForCausalLM": Architecture(
        name="glm4_moe_lite",
        model_type="glm4_moe_lite",
        overrides=_glm4_moe_lite,
        supported_keys=V3_KEYS,
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=_V3_TENSORS,
        defaults=frozen(
            kv_lora_rank=512,
            q_lora_rank=768,
            qk_rope_head_dim=64,
            qk_nope_head_dim=192,
            v_head_dim=256,
            max_position_embeddings=202_752,
            rms_norm_eps=1e-5,
            intermediate_size=10_240,
            moe_intermediate_size=1536,
            n_routed_experts=64,
            n_shared_experts=1,
            num_experts_per_tok=4,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.8,
            rope_interleave=True,
            bos_token_id=0,
            eos_token_id=1,
        ),
    ),
    "Mistral4ForCausalLM": Architecture(
        name="mistral4",
        model_type="mistral4",
        overrides=_mistral4,
        supported_keys=V3_KEYS | {"partial_rotary_factor"},
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=_MISTRAL4_TENSORS,
        defaults=frozen(
            kv_lora_rank=256,
            q_lora_rank=1024,
            qk_rope_head_dim=64,
            qk_nope_head_dim=64,
            v_head_dim=128,
            max_position_embeddings=1_048_576,
            rms_norm_eps=1e-6,
            intermediate_size=12_288,
            moe_intermediate_size=2048,
            first_k_dense_replace=0,
            n_routed_experts=128,
            n_shared_experts=1,
            num_experts_per_tok=4,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.0,
            rope_interleave=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "YoutuForCausalLM": Architecture(
        name="youtu",
        model_type="youtu",
        overrides=_youtu,
        supported_keys=LATENT_KEYS | {"rope_interleave"},
        tensors=_DENSE_TENSORS,
        defaults=frozen(
            **V3_SIZES,
            max_position_embeddings=131_072,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            rope_interleave=True,
            bos_token_id=128_000,
            eos_token_id=128_001,
        ),
    ),
    "MiniCPM3ForCausalLM": Architecture(
        name="minicpm3",
        model_type="minicpm3",
        overrides=_minicpm3,
        supported_keys=LATENT_KEYS,
        tensors=_DENSE_TENSORS,
        defaults=frozen(
            kv_lora_rank=256,
            q_lora_rank=768,
            qk_nope_head_dim=64,
            qk_rope_head_dim=32,
            max_position_embeddings=32_768,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            scale_emb=12,
            scale_depth=1.4,
            dim_model_base=256,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}
