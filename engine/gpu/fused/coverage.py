"""Which models and layers the fused kernels of a decode step compute."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any

from swiftchat.cuda.ops.attention.rotary import head_norm_fits
from swiftchat.cuda.ops.layers.act_and_mul import KINDS
from swiftchat.cuda.ops.linear.layout import M_TILE, linear_fits
from swiftchat.cuda.ops.linear.linear import MAX_ROPE_HEAD_DIM
from swiftchat.engine.gpu.fused.branches import mixer_fits, per_layer_fits
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.model.weights import DecoderWeights, LayerWeights
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.parts.attention import (
    Attention,
    HeadNorms,
    OutputGate,
    Scores,
    Values,
)
from swiftchat.weights.architectures.parts.embeddings import Embeddings, Head
from swiftchat.weights.architectures.parts.layers import LayerConfig, Norm
from swiftchat.weights.architectures.parts.mlp import Activation, Mlp, Moe

# The fields of each part that `FusedDecoder` computes, whatever their values are. Values that are
# parts of these kinds are looked into; others are computed by the kernels of `CudaOps`.
_COMPUTED: Mapping[type, frozenset[str]] = MappingProxyType(
    {
        ModelConfig: frozenset(
            (
                # They change no operation of a layer.
                *("family", "architecture", "max_context_tokens", "bos_id", "eos_ids", "dtype"),
                *("ignored_keys", "hidden_size", "residual_scale"),
                *("norm", "embeddings", "layers", "head"),
            )
        ),
        Norm: frozenset(("eps", "unit_offset", "has_weights")),
        Embeddings: frozenset(("vocab_size", "extra_rows", "scale")),
        Head: frozenset(("tied", "scale", "softcap")),
        # `fused_layer_fits` checks the sizes of matrices.
        LayerConfig: frozenset(
            ("attention", "mixer", "mlp", "moe", "mixer_activation", "file_layer")
        ),
        Attention: frozenset(
            (
                *("num_heads", "num_kv_heads", "head_dim", "values", "scores", "rope", "latent"),
                *("bias", "output_bias", "kv_source"),
            )
        ),
        Values: frozenset(("dim", "normalized", "are_keys")),
        Scores: frozenset(("scale", "window", "chunk", "softcap", "sinks", "growth")),
        HeadNorms: frozenset(("over", "after_rope", "has_weights")),
        OutputGate: frozenset(),
        Mlp: frozenset(("intermediate_size", "activation", "bias")),
        Moe: frozenset(
            (
                *("num_experts", "experts_per_token", "expert_size", "activation", "router"),
                *("bias", "shared_size", "shared_gate"),
                "identity_scale",  # which `identity_experts` alone have: of a rank, it is a part
            )
        ),
        Activation: frozenset(("gated",)),
    }
)


def _has_end(config: ModelConfig) -> bool:
    """Whether something follows the last branch of a layer: its output norm computes that."""
    return all(layer.norm_order == "sandwich" for layer in config.layers)


def _has_only_experts(config: ModelConfig) -> bool:
    """Whether all MLPs are experts, whose kernels have gates of all kinds."""
    return all(
        layer.mlp is None and layer.moe is not None and not layer.moe.shared_size
        for layer in config.layers
    )


def _head_norms_fit(config: ModelConfig) -> bool:
    return all(
        each.head_norms is None
        or (
            each.head_norms.over == "head"
            and each.latent is None
            and head_norm_fits(each.head_dim, each.head_dim)
        )
        for each in config.attentions
    )


# The fields that `FusedDecoder` computes for some values other than the default, with a test of
# the config.
_COMPUTED_IF: Mapping[tuple[type, str], Callable[[ModelConfig], bool]] = MappingProxyType(
    {
        (Embeddings, "per_layer"): _has_end,
        # A matmul computes the RMSNorm of its input.
        (LayerConfig, "norm_order"): _has_end,
        (LayerConfig, "has_scale"): _has_end,
        (Attention, "head_norms"): _head_norms_fit,
        (Attention, "gate"): lambda config: config.mixer is not None,
        (Activation, "kind"): lambda config: (
            config.activation.kind in KINDS or _has_only_experts(config)
        ),
        (Activation, "interleaved"): _has_only_experts,
        (Activation, "limit"): _has_only_experts,
        (Norm, "kind"): lambda config: config.norm.kind == "rms",
    }
)
# The fields of the weights that `FusedDecoder` reads; the others must be None.
_WEIGHTS = frozenset(("embed", "layers", "final_norm", "lm_head", "per_layer"))
_LAYER_WEIGHTS = frozenset(
    (
        *("attn_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "sinks", "o", "o_bias"),
        *("attn_out_norm", "latent", "mixer"),
        *("mlp_norm", "gate_up", "gate_up_bias", "down", "down_bias", "mlp_out_norm"),
        *("experts", "expert_norms", "per_layer", "scale"),
    )
)


def fused_kernels_cover(config: ModelConfig) -> bool:
    """Return whether the fused kernels compute every operation of an architecture.

    What is not named here must have its default value. So they do not cover a model with a field
    that is new, until it is named.
    """
    layers = dict.fromkeys(config.layers)
    return (
        _is_computed(config, config)
        and all(_has_two_branches(layer) for layer in layers)
        and len({each.num_heads for each in config.attentions}) <= 1
    )


def _has_two_branches(layer: LayerConfig) -> bool:
    """Whether a layer is attention or a mixer, then an MLP or experts, in an order that fits."""
    has_both = layer.mlp is not None and layer.moe is not None
    return (
        not layer.has_single_branch
        and (layer.attention is None or layer.mixer is None)
        and (layer.attention is None or _has_values_of_keys(layer.attention))
        # Experts alone read the norm of the stream in the kernel of their router.
        and (layer.moe is None or has_both or layer.norm_order == "pre")
        and (not has_both or layer.norm_order == "sandwich")
    )


def _has_values_of_keys(attention: Attention) -> bool:
    return attention.latent is not None or attention.values.dim == attention.head_dim


def _is_computed(part: Any, config: ModelConfig) -> bool:
    """Whether all fields of a part, and of the parts in it, are computed or have their defaults."""
    kind = next(kind for kind in _COMPUTED if isinstance(part, kind))
    for field in fields(part):
        value, place = getattr(part, field.name), (kind, field.name)
        is_default = field.default is not MISSING and bool(value == field.default)
        is_named = field.name in _COMPUTED[kind]
        is_computed_here = place in _COMPUTED_IF and _COMPUTED_IF[place](config)
        if not (is_default or is_named or is_computed_here):
            return False
        inner = dict.fromkeys(value) if isinstance(value, tuple) else (value,)
        if not all(_is_computed(each, config) for each in inner if type(each) in _COMPUTED):
            return False
    return True


def fused_weights_fit(weights: DecoderWeights) -> bool:
    """Return whether the fused kernels read all weights outside the layers."""
    return _has_only(weights, _WEIGHTS)


def _has_only(weights: DecoderWeights | LayerWeights, names: Collection[str]) -> bool:
    return all(value is None for name, value in vars(weights).items() if name not in names)


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
    is_read = _has_only(layer, _LAYER_WEIGHTS)
    return is_read and attends and has_mlp and per_layer_fits(gpu, n, layer.per_layer)


def has_plain_heads(ops: CudaOps, i: int, layer: LayerWeights) -> bool:
    """Return whether `linear_rope_cache` computes the heads of a layer, if they are rotated.

    It computes a part of a head at a time, and does not scale queries.
    """
    config = ops.attention.layers[i]
    return (
        layer.latent is None
        and layer.head_norms is None
        and config.gate is None
        and config.head_dim <= MAX_ROPE_HEAD_DIM
        and config.kv_source is None
        and not config.values.are_keys
        and ops.attention.query_factors(i) is None
    )
