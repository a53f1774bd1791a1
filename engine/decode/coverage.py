"""Which models and layers the fused kernels of a decode step compute."""

from swiftchat.cuda.ops.attention.rotary import head_norm_fits
from swiftchat.cuda.ops.linear.layout import M_TILE, linear_fits
from swiftchat.cuda.ops.linear.linear import MAX_ROPE_HEAD_DIM
from swiftchat.engine.decode.fused_branches import mixer_fits, per_layer_fits
from swiftchat.engine.model.coverage import head_dims
from swiftchat.engine.model.cuda_ops import CudaOps
from swiftchat.engine.model.weights import LayerWeights
from swiftchat.weights.architectures.config import ModelConfig


def fused_kernels_cover(config: ModelConfig) -> bool:
    """Return whether the fused kernels compute every operation of an architecture.

    They fuse RMSNorm, but not LayerNorm, into a matmul, and expect an attention and an MLP branch
    in sequence. Gates of attention are only for models with mixers. What comes at the end of a
    layer is part of the last branch's output norm.
    """
    sizes, has_mixer = head_dims(config), config.mixer is not None
    has_end = config.layer_scales or config.per_layer_embeddings is not None
    has_both = config.mlp_and_experts
    return (
        config.norm == "rms"
        and config.norm_order in ("pre", "sandwich")
        and not config.output_norm_layers
        and config.gated
        and config.clip_qkv is None
        and (has_mixer or not config.attention_gate)
        and not config.single_branch
        and not config.mixer_with_attention
        and not config.parallel_residual
        and not config.embedding_norm
        and not config.learned_positions
        and not config.lm_head_bias
        and not config.alibi
        and (not (has_end or has_both) or config.norm_order == "sandwich")
        and not config.shortcut_experts
        and config.experts_out_scale == 1.0
        and (config.num_experts == 0 or config.norm_order == "pre" or has_both)
        and config.embedding_size is None
        and config.streams is None
        and not any(config.gate_sparsity)
        and (config.latent is None or config.qk_norm is None)
        and config.qk_norm in (None, "head")
        and (config.qk_norm is None or all(head_norm_fits(size, size) for size in sizes))
    )


def fused_layer_fits(ops: CudaOps, n: int, i: int, layer: LayerWeights) -> bool:
    """Return whether the fused kernels compute n rows with the weights of layer i."""
    gpu, head_dim = ops.gpu, ops.attention.layers[i].head_dim
    qkv, o = layer.qkv.kernel_matrices, layer.o.kernel_matrices
    gate_up, down = layer.gate_up.kernel_matrices, layer.down.kernel_matrices
    span = head_dim if has_plain_heads(ops, i, layer) else M_TILE
    if layer.mixer is not None:
        attends = mixer_fits(ops, n, layer.mixer)
    else:
        attends = (
            len(qkv) > 0
            and len(o) == 1
            and all(linear_fits(gpu, n, matrix, pair_span=span) for matrix in qkv)
            and linear_fits(gpu, n, o[0], splittable=True)
        )
    has_mlp = (layer.experts is not None and layer.expert_norms is None) or (
        len(gate_up) > 0
        and len(down) == 1
        and all(linear_fits(gpu, n, matrix, pair_span=len(matrix)) for matrix in gate_up)
        and linear_fits(gpu, n, down[0], splittable=True)
    )
    return attends and has_mlp and per_layer_fits(gpu, n, layer.per_layer)


def has_plain_heads(ops: CudaOps, i: int, layer: LayerWeights) -> bool:
    """Return whether `linear_rope_cache` computes the heads of a layer, if they are rotated.

    It computes a part of a head at a time, and does not scale queries.
    """
    config = ops.attention.layers[i]
    return (
        layer.latent is None
        and layer.head_norms is None
        and not config.attention_gate
        and config.head_dim <= MAX_ROPE_HEAD_DIM
        and config.kv_source(i) == i
        and i not in config.keys_as_values
        and ops.attention.query_factors(i) is None
    )
