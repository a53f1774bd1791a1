"""Which models and layers the fused kernels of a decode step compute."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any

from swiftchat.cuda.ops.attention.rotary import head_norm_fits
from swiftchat.cuda.ops.layers.act_and_mul import KINDS
from swiftchat.cuda.ops.linear.layout import M_TILE, linear_fits
from swiftchat.cuda.ops.linear.linear import MAX_ROPE_HEAD_DIM
from swiftchat.engine.gpu.coverage import head_dims
from swiftchat.engine.gpu.fused.branches import mixer_fits, per_layer_fits
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.model.weights import DecoderWeights, LayerWeights
from swiftchat.weights.architectures.config import ModelConfig

# The fields of `ModelConfig` that `FusedDecoder` computes, whatever their values are.
_COMPUTED = frozenset(
    (
        # They change no operation of a layer.
        *("family", "architecture", "max_context_tokens", "bos_id", "eos_ids", "dtype"),
        *("tied_embeddings", "extra_embeddings", "file_layers", "ignored_keys"),
        "identity_scale",  # which `identity_experts` alone have: of a rank, it is a part
        # Sizes; `fused_layer_fits` checks those of matrices.
        *("vocab_size", "hidden_size", "intermediate_size", "num_layers"),
        *("num_heads", "num_kv_heads", "head_dim", "expert_size", "shared_expert_size"),
        # The stream and its norms.
        *("norm_eps", "norm_unit_offset", "norm_weights", "residual_scale", "embedding_scale"),
        *("logit_scale", "logit_softcap"),
        # Biases of matmuls.
        *("attention_bias", "output_bias", "mlp_bias", "expert_bias"),
        # Attention, by the kernels of `CudaOps`.
        *("rope", "local_rope", "unrotated_layers", "qk_norm_after_rope", "qk_norm_weights"),
        *("sliding_window", "full_layers", "attention_chunk", "query_scalar", "query_growth"),
        *("attention_softcap", "attention_sinks", "windowed_sinks", "latent"),
        *("kv_sources", "keys_as_values", "value_norm"),
        # Mixers and experts, by the kernels of `CudaOps`.
        *("mixer", "mixer_layers", "mixer_activation"),
        *("experts_per_token", "router", "shared_expert_gate", "dense_layers"),
    )
)
# The fields of `LayerSizes` that may differ between layers.
_VARYING = frozenset(("head_dim", "num_kv_heads", "intermediate_size"))


def _has_end(config: ModelConfig) -> bool:
    """Whether something follows the last branch of a layer: its output norm computes that."""
    return config.norm_order == "sandwich"


def _has_only_experts(config: ModelConfig) -> bool:
    """Whether all MLPs are experts, whose kernels have gates of all kinds."""
    has_others = config.dense_layers or config.mlp_and_experts or config.shared_expert_size
    return config.num_experts > 0 and not has_others


def _vary_as_computed(config: ModelConfig) -> bool:
    return all(
        name in _VARYING or size == getattr(config, name)
        for sizes in config.layer_sizes
        for name, size in vars(sizes).items()
    )


def _head_norms_fit(config: ModelConfig) -> bool:
    fit = all(head_norm_fits(size, size) for size in head_dims(config))
    return config.qk_norm == "head" and config.latent is None and fit


# The fields that `FusedDecoder` computes for some values other than the default, with a test of
# the config.
_COMPUTED_IF: Mapping[str, Callable[[ModelConfig], bool]] = MappingProxyType(
    {
        # A matmul computes the RMSNorm of its input.
        "norm_order": lambda config: config.norm_order == "sandwich",
        "qk_norm": _head_norms_fit,
        "attention_gate": lambda config: config.mixer is not None,
        "activation": lambda config: config.activation in KINDS or _has_only_experts(config),
        "interleaved_gate": _has_only_experts,
        "gate_limit": _has_only_experts,
        "gate_sparsity": lambda config: not any(config.gate_sparsity),
        "num_experts": lambda config: config.norm_order == "pre" or config.mlp_and_experts,
        "mlp_and_experts": _has_end,
        "layer_scales": _has_end,
        "per_layer_embeddings": _has_end,
        "layer_sizes": _vary_as_computed,
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

    What is not named here must be as in Llama, which the defaults of `ModelConfig` describe. So
    they do not cover a model with a field that is new, until it is named.
    """
    return all(
        field.name in _COMPUTED
        or _is_default(field.default, getattr(config, field.name))
        or (field.name in _COMPUTED_IF and _COMPUTED_IF[field.name](config))
        for field in fields(config)
    )


def _is_default(default: Any, value: Any) -> bool:
    return default is not MISSING and bool(value == default)


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
        and not config.attention_gate
        and config.head_dim <= MAX_ROPE_HEAD_DIM
        and config.kv_source(i) == i
        and i not in config.keys_as_values
        and ops.attention.query_factors(i) is None
    )
