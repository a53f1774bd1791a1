"""Which models the GPU kernels compute."""

import torch

from swiftchat.cuda.ops.attention.latent_attention import latent_attention_fits
from swiftchat.cuda.ops.attention.rotary import MAX_HEAD_DIM, head_norm_fits
from swiftchat.cuda.ops.layers.act_and_mul import KINDS
from swiftchat.cuda.quantized_kv import PACKED_HEAD_DIMS
from swiftchat.cuda.signature import DTYPE_NAMES
from swiftchat.engine.gpu.mixers.mix import mixer_kernels_cover
from swiftchat.weights.architectures.parts.attention import Attention
from swiftchat.weights.architectures.parts.model import ModelConfig


def kernels_cover(config: ModelConfig, dtype: torch.dtype, kv_dtype: str = "auto") -> bool:
    """Return whether the kernels compute every operation of a model; else `TorchOps` runs it.

    Partial, interleaved and scaled rotary embeddings need no kernels of their own: they are part of
    the order of the weights and of the table of angles.
    """
    moe = config.moe
    return (
        mixer_kernels_cover(config)
        and (config.activation.kind in KINDS or (moe is not None and moe.bias))
        and not any(layer.inner_norms for layer in config.layers)
        and len({layer.norm_order for layer in config.layers}) == 1
        and all(_covers(each, dtype) for each in config.attentions)
        and (config.embeddings.per_layer is None or config.activation.kind in KINDS)
        and config.prefix_lm is None
        and dtype in DTYPE_NAMES
        and all(_stores(size, dtype, kv_dtype) for size in head_dims(config))
    )


def _covers(attention: Attention, dtype: torch.dtype) -> bool:
    """Return whether the kernels compute the attention of a layer."""
    norms, gate, latent = attention.head_norms, attention.gate, attention.latent
    scores, values = attention.scores, attention.values
    if latent is not None and not (
        latent.index is None
        and latent_attention_fits(dtype, latent.kv_rank, latent.rope_dim)
        and latent.nope_dim % 8 == 0
        and scores.softcap is None
        and scores.growth is None
        and scores.chunk is None
    ):
        return False
    needs_rotary = (norms is not None and norms.after_rope) or values.normalized or values.are_keys
    return (
        # The keys must not be normalized before they become values.
        (not needs_rotary or _normalizes_heads(attention))
        and (gate is None or not (gate.by_head or gate.softplus))
        and (latent is not None or values.dim == attention.head_dim)
        and attention.head_dim % 8 == 0
        and (latent is not None or attention.head_dim <= MAX_HEAD_DIM)
    )


def _normalizes_heads(attention: Attention) -> bool:
    """Return whether the kernel of the rotary embedding computes the norms of queries and keys."""
    norms, size = attention.head_norms, attention.head_dim
    return norms is not None and norms.over == "head" and head_norm_fits(size, size)


def head_dims(config: ModelConfig) -> set[int]:
    """Return the sizes of the heads of all layers."""
    return {each.head_dim for each in config.attentions}


def _stores(head_dim: int, dtype: torch.dtype, kv_dtype: str) -> bool:
    """Return whether the kernels write and read a cache of this type with heads of this size."""
    if kv_dtype == "auto":
        return True
    if kv_dtype == "int5":
        return dtype != torch.float32 and head_dim in PACKED_HEAD_DIMS
    return dtype != torch.float32 and head_dim % 16 == 0 and head_norm_fits(head_dim, head_dim)
