"""Readers of the keys of latent attention, and names of its tensors, of several vendors."""

from dataclasses import replace
from typing import Any

from swiftchat.weights.architectures.parts.architecture import frozen, llama_tensors
from swiftchat.weights.architectures.parts.attention import Attention, Values
from swiftchat.weights.architectures.parts.expert_readers import (
    CORRECTION,
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERTS,
    listed_dense,
    sigmoid_router,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    integer,
    invalid,
    mapping,
    number,
    optional_integer,
    optional_number,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.latent import LatentAttention, SparseIndex
from swiftchat.weights.architectures.parts.layers import sparse
from swiftchat.weights.architectures.parts.mlp import Moe
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import yarn_magnitude


def latent_attention(keys: Keys, *, interleaved: bool, **fields: Any) -> Attention:
    """Return latent attention; `interleaved`: rotated pairs are neighbors."""
    heads = keys.num_heads
    kv_heads = optional_integer(keys, "num_key_value_heads", 1, MAX_HEADS)
    if kv_heads not in (None, heads):
        raise invalid("num_key_value_heads", f"{heads}, as num_attention_heads", kv_heads)
    latent = LatentAttention(
        kv_rank=integer(keys, "kv_lora_rank", 1, MAX_WIDTH),
        q_rank=optional_integer(keys, "q_lora_rank", 1, MAX_WIDTH),
        nope_dim=integer(keys, "qk_nope_head_dim", 1, MAX_HEAD_DIM),
        rope_dim=integer(keys, "qk_rope_head_dim", 2, MAX_HEAD_DIM),
        value_dim=integer(keys, "v_head_dim", 1, MAX_HEAD_DIM),
        interleaved=interleaved,
    )
    if latent.rope_dim % 2:
        raise invalid("qk_rope_head_dim", "an even number", latent.rope_dim)
    return keys.attention(
        num_kv_heads=heads,
        head_dim=latent.head_dim,
        values=Values(latent.value_dim),
        scores=keys.scores(scale=_score_scale(keys) * latent.head_dim**-0.5),
        rope=keys.rope(latent.rope_dim),
        latent=latent,
        **fields,
    )


def _score_scale(keys: Keys) -> float:
    """Return the factor of attention scores that scaled rotary embeddings bring."""
    rope = mapping(keys, "rope_scaling") or mapping(keys, "rope_parameters") or {}
    if rope.get("rope_type", rope.get("type", "default")) in ("default", None):
        return 1.0
    scale = optional_number(rope, "mscale_all_dim", above=-1e-9, below=1e3)
    if not scale:
        return 1.0
    return yarn_magnitude(number(rope, "factor", above=0.0, below=1e6), scale) ** 2


def v3_moe(keys: Keys) -> Moe:
    """Return DeepSeek-V3's experts and their router."""
    return keys.moe(sigmoid_router(keys), shared="n_shared_experts")


def sparse_attention(keys: Keys, *, interleaved: bool) -> Attention:
    """Return sparse attention; `interleaved` is for the pairs of its index."""
    attention = latent_attention(keys, interleaved=True)
    index = SparseIndex(
        num_heads=integer(keys, "index_n_heads", 1, MAX_HEADS),
        dim=integer(keys, "index_head_dim", 1, MAX_HEAD_DIM),
        top_k=integer(keys, "index_topk", 1, MAX_CONTEXT),
        interleaved=interleaved,
    )
    latent = attention.latent
    if latent is None or latent.q_rank is None:
        raise invalid("q_lora_rank", "a number, as the attention is sparse", None)
    if index.dim < latent.rope_dim:
        raise invalid("index_head_dim", f"at least {latent.rope_dim}", index.dim)
    return replace(attention, latent=replace(latent, index=index))


def sparse_model(keys: Keys, *, interleaved: bool) -> ModelConfig:
    """Return DeepSeek-V3.2 or a model like it; `interleaved` as in `sparse_attention`."""
    attention = sparse_attention(keys, interleaved=interleaved)
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    dense = listed_dense(keys, integer(keys, "first_k_dense_replace", 0, MAX_LAYERS))
    return keys.model(sparse(layers, v3_moe(keys), dense))


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

DENSE_TENSORS = llama_tensors(LATENT_TENSORS)

V3_TENSORS = llama_tensors({**LATENT_TENSORS, **EXPERTS, **SHARED_EXPERTS, **CORRECTION})

LATENT_KEYS = frozenset({"kv_lora_rank", "q_lora_rank"})

V3_KEYS = MOE_KEYS | LATENT_KEYS | {"rope_interleave"}

V3_SIZES = frozen(
    kv_lora_rank=512,
    q_lora_rank=1536,
    qk_rope_head_dim=64,
    qk_nope_head_dim=128,
    v_head_dim=128,
)

_INDEX = frozen(
    index_q="self_attn.indexer.wq_b.weight",
    index_k="self_attn.indexer.wk.weight",
    index_norm="self_attn.indexer.k_norm.weight",
    index_norm_bias="self_attn.indexer.k_norm.bias",
    index_weights="self_attn.indexer.weights_proj.weight",
)

SPARSE_TENSORS = llama_tensors(
    {**LATENT_TENSORS, **_INDEX, **EXPERTS, **SHARED_EXPERTS, **CORRECTION}
)

SPARSE_DEFAULTS = frozen(
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
