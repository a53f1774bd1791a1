"""Which models the GPU kernels compute."""

import torch

from swiftchat.cuda.ops.attention.rotary import MAX_HEAD_DIM, head_norm_fits
from swiftchat.cuda.ops.layers.act_and_mul import KINDS
from swiftchat.cuda.quantized_kv import PACKED_HEAD_DIMS
from swiftchat.cuda.signature import DTYPE_NAMES
from swiftchat.engine.gpu.latent_attention import latent_kernels_cover
from swiftchat.engine.gpu.mixers.mix import mixer_kernels_cover
from swiftchat.weights.architectures.config import ModelConfig


def kernels_cover(config: ModelConfig, dtype: torch.dtype, kv_dtype: str = "auto") -> bool:
    """Return whether the kernels compute every operation of a model; else `TorchOps` runs it.

    Partial, interleaved and scaled rotary embeddings need no kernels of their own: they are part of
    the order of the weights and of the table of angles.
    """
    return (
        mixer_kernels_cover(config)
        and (config.activation in KINDS or config.expert_bias)
        and (config.qk_norm is None or not config.qk_norm_after_rope or _normalizes_heads(config))
        and (config.query_growth is None or config.latent is None)
        and not config.inner_norms
        and not config.output_norm_layers
        and not config.gate_by_head
        and not config.softplus_gate
        and config.value_size is None
        and latent_kernels_cover(config, dtype)
        and (config.attention_chunk is None or config.latent is None)
        # The keys must not be normalized before they become values.
        and (not (config.value_norm or config.keys_as_values) or _normalizes_heads(config))
        and (config.per_layer_embeddings is None or config.activation in KINDS)
        and config.prefix_lm is None
        and dtype in DTYPE_NAMES
        and (_supports_heads(config, dtype, kv_dtype) or not _attends(config))
    )


def _normalizes_heads(config: ModelConfig) -> bool:
    """Return whether the kernel of the rotary embedding computes the norms of queries and keys."""
    sizes = head_dims(config)
    return config.qk_norm == "head" and all(head_norm_fits(size, size) for size in sizes)


def head_dims(config: ModelConfig) -> set[int]:
    """Return the sizes of the heads of all layers."""
    return {config.of_layer(layer).head_dim for layer in range(config.num_layers)}


def _attends(config: ModelConfig) -> bool:
    return any(config.has_attention(layer) for layer in range(config.num_layers))


def _supports_heads(config: ModelConfig, dtype: torch.dtype, kv_dtype: str) -> bool:
    sizes = head_dims(config)
    return (
        all(size % 8 == 0 for size in sizes)
        and (max(sizes) <= MAX_HEAD_DIM or config.latent is not None)
        and (
            kv_dtype == "auto"
            or all(_supports_quantized_kv(size, dtype, kv_dtype) for size in sizes)
        )
    )


def _supports_quantized_kv(head_dim: int, dtype: torch.dtype, kv_dtype: str) -> bool:
    """Return whether the kernels write and read a quantized cache with heads of this size."""
    if kv_dtype == "int5":
        return dtype != torch.float32 and head_dim in PACKED_HEAD_DIMS
    return dtype != torch.float32 and head_dim % 16 == 0 and head_norm_fits(head_dim, head_dim)
