"""DeepSeek V3 with sparse attention: V3.2 and GLM-5.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swiftchat.weights.architectures.families.deepseek import (
    CORRECTION,
    LATENT_TENSORS,
    V3_KEYS,
    V3_SIZES,
    latent_fields,
    v3_experts,
)
from swiftchat.weights.architectures.families.moe import SHARED_EXPERTS, listed_dense
from swiftchat.weights.architectures.families.qwen import EXPERTS
from swiftchat.weights.architectures.parts.architecture import Architecture, frozen, llama_tensors
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    Fields,
    integer,
    invalid,
)
from swiftchat.weights.architectures.parts.latent import LatentAttention, SparseIndex


def _sparse(config: Fields, *, interleaved: bool) -> dict[str, Any]:
    """Return the fields of sparse attention; `interleaved` is for the pairs of its index."""
    values = latent_fields(config, interleaved=True)
    index = SparseIndex(
        num_heads=integer(config, "index_n_heads", 1, MAX_HEADS),
        dim=integer(config, "index_head_dim", 1, MAX_HEAD_DIM),
        top_k=integer(config, "index_topk", 1, MAX_CONTEXT),
        interleaved=interleaved,
    )
    latent: LatentAttention = values["latent"]
    if latent.q_rank is None:
        raise invalid("q_lora_rank", "a number, as the attention is sparse", None)
    if index.dim < latent.rope_dim:
        raise invalid("index_head_dim", f"at least {latent.rope_dim}", index.dim)
    return {**values, "latent": replace(latent, index=index)}


def _deepseek_v32(config: Fields) -> Mapping[str, Any]:
    dense = integer(config, "first_k_dense_replace", 0, MAX_LAYERS)
    return {
        **v3_experts(config),
        **_sparse(config, interleaved=False),
        "dense_layers": listed_dense(config, dense),
    }


def _glm_moe_dsa(config: Fields) -> Mapping[str, Any]:
    kinds, frequency = config.get("indexer_types"), config.get("index_topk_freq", 1)
    if frequency != 1 or config.get("index_topk_pattern") is not None:
        raise invalid("index_topk_freq", "1: each layer has its own index", frequency)
    if kinds is not None and (not isinstance(kinds, list) or {*kinds} - {"full"}):
        raise invalid("indexer_types", "full in every layer", str(kinds))
    return {**_deepseek_v32(config), **_sparse(config, interleaved=True)}


_INDEX = frozen(
    index_q="self_attn.indexer.wq_b.weight",
    index_k="self_attn.indexer.wk.weight",
    index_norm="self_attn.indexer.k_norm.weight",
    index_norm_bias="self_attn.indexer.k_norm.bias",
    index_weights="self_attn.indexer.weights_proj.weight",
)
_SPARSE_TENSORS = llama_tensors(
    {**LATENT_TENSORS, **_INDEX, **EXPERTS, **SHARED_EXPERTS, **CORRECTION}
)
_SPARSE_DEFAULTS = frozen(
    rope_interleave=True,
    moe_intermediate_size=2048,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
    first_k_dense_replace=3,
    index_topk=2048,
    index_head_dim=128,
    bos_token_id=0,
    eos_token_id=1,
)

SPARSE: Mapping[str, Architecture] = {
    "DeepseekV32ForCausalLM": Architecture(
        name="deepseek_v32",
        model_type="deepseek_v32",
        overrides=_deepseek_v32,
        supported_keys=V3_KEYS,
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=_SPARSE_TENSORS,
        defaults=frozen(
            **V3_SIZES,
            **_SPARSE_DEFAULTS,
            max_position_embeddings=163_840,
            rms_norm_eps=1e-6,
            index_n_heads=64,
            n_group=8,
            topk_group=4,
        ),
    ),
    "GlmMoeDsaForCausalLM": Architecture(
        name="glm_moe_dsa",
        model_type="glm_moe_dsa",
        overrides=_glm_moe_dsa,
        supported_keys=V3_KEYS,
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=_SPARSE_TENSORS,
        defaults=frozen(
            **_SPARSE_DEFAULTS,
            kv_lora_rank=512,
            q_lora_rank=2048,
            qk_rope_head_dim=64,
            qk_nope_head_dim=192,
            v_head_dim=256,
            max_position_embeddings=202_752,
            rms_norm_eps=1e-5,
            index_n_heads=32,
            n_group=1,
            topk_group=1,
        ),
    ),
}
