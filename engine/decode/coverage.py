"""Which models the fused kernels of a decode step compute."""

from swiftchat.cuda.ops.rotary import head_norm_fits
from swiftchat.weights.architectures.config import ModelConfig


def fused_kernels_cover(config: ModelConfig) -> bool:
    """Return whether the fused kernels compute every operation of an architecture.

    They fuse RMSNorm, but not LayerNorm, into a matmul, and expect an attention and an MLP branch
    in sequence. Gates of attention are only for models with mixers.
    """
    size, has_mixer = config.head_dim, config.mixer is not None
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
        and not config.mlp_and_experts
        and (config.num_experts == 0 or config.norm_order == "pre")
        and config.embedding_size is None
        and (config.latent is None or config.qk_norm is None)
        and (config.qk_norm is None or (config.qk_norm == "head" and head_norm_fits(size, size)))
    )
