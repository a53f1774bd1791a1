"""Which models and layers the fused decode kernels compute."""

from swiftchat.cuda.ops.linear_layout import M_TILE, linear_fits
from swiftchat.cuda.ops.rotary import head_norm_fits
from swiftchat.engine.decode.fused_branches import mixer_fits
from swiftchat.engine.model.cuda_ops import CudaOps
from swiftchat.engine.model.weights import LayerWeights
from swiftchat.weights.architectures.config import ModelConfig


def fused_kernels_cover(config: ModelConfig) -> bool:
    """Return whether the fused kernels compute every operation of an architecture.

    They fuse RMSNorm, but not LayerNorm, into a matmul, and expect an attention and an MLP branch
    in sequence. Gates of attention and experts are only for models with mixers.
    """
    size, has_mixer = config.head_dim, config.mixer is not None
    has_experts = config.num_experts > 0
    return (
        config.norm == "rms"
        and config.norm_order in ("pre", "sandwich")
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
        and (has_mixer or config.latent is not None or not has_experts)
        and (not has_experts or config.norm_order == "pre")
        and config.embedding_size is None
        and (config.qk_norm is None or (config.qk_norm == "head" and head_norm_fits(size, size)))
    )


def layer_fits(ops: CudaOps, n: int, layer: LayerWeights, head_dim: int) -> bool:
    """Return whether the fused kernels compute n rows with the weights of a layer."""
    gpu = ops.gpu
    qkv, o = layer.qkv.kernel_matrices, layer.o.kernel_matrices
    gate_up, down = layer.gate_up.kernel_matrices, layer.down.kernel_matrices
    if layer.mixer is not None:
        attends = mixer_fits(ops, n, layer.mixer)
    else:
        span = M_TILE if layer.latent is not None else head_dim  # heads are rotated on the way
        attends = (
            len(qkv) > 0
            and len(o) == 1
            and all(linear_fits(gpu, n, matrix, pair_span=span) for matrix in qkv)
            and linear_fits(gpu, n, o[0], splittable=True)
        )
    has_mlp = layer.experts is not None or (
        len(gate_up) > 0
        and len(down) == 1
        and all(linear_fits(gpu, n, matrix, pair_span=len(matrix)) for matrix in gate_up)
        and linear_fits(gpu, n, down[0], splittable=True)
    )
    return attends and has_mlp and layer.attn_gate is None
