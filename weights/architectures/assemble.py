"""The tree of a model's parts, assembled from the values that a family reads by name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swiftchat.weights.architectures.parts.attention import (
    Attention,
    HeadNorms,
    OutputGate,
    Scores,
    Values,
)
from swiftchat.weights.architectures.parts.embeddings import Embeddings, Head, Positions
from swiftchat.weights.architectures.parts.layers import LayerConfig, LayerSizes, Norm
from swiftchat.weights.architectures.parts.mlp import Activation, Mlp, Moe
from swiftchat.weights.architectures.parts.router import RouterConfig

# What a family reads: the values of the standard keys, and those that it changes, by name.
Named = Mapping[str, Any]


def parts_of(values: Named) -> dict[str, Any]:
    """Return the fields of `ModelConfig` that the values by name describe."""
    return {
        **{name: values[name] for name in _UNCHANGED if name in values},
        "norm": _norm(values),
        "embeddings": _embeddings(values),
        "layers": tuple(_layer(values, i) for i in range(values["num_layers"])),
        "head": _head(values),
    }


_UNCHANGED = (
    *("family", "architecture", "dtype", "max_context_tokens", "bos_id", "eos_ids"),
    *("ignored_keys", "hidden_size", "residual_scale", "prefix_lm", "streams"),
)


def _norm(values: Named) -> Norm:
    return Norm(
        kind=values.get("norm", "rms"),
        eps=values["norm_eps"],
        has_weights=values.get("norm_weights", True),
        has_bias=values.get("norm_bias", False),
        unit_offset=values.get("norm_unit_offset", False),
    )


def _embeddings(values: Named) -> Embeddings:
    count = values.get("learned_positions", 0)
    return Embeddings(
        vocab_size=values["vocab_size"],
        extra_rows=values.get("extra_embeddings", 0),
        width=values.get("embedding_size"),
        scale=values.get("embedding_scale", 1.0),
        positions=Positions(count, values.get("position_offset", 0)) if count else None,
        has_norm=values.get("embedding_norm", False),
        per_layer=values.get("per_layer_embeddings"),
    )


def _head(values: Named) -> Head:
    return Head(
        tied=values["tied_embeddings"],
        has_norm=values.get("final_norm", True),
        bias=values.get("lm_head_bias", False),
        scale=values.get("logit_scale", 1.0),
        softcap=values.get("logit_softcap"),
    )


def _layer(values: Named, i: int) -> LayerConfig:
    has_mixer = i in values.get("mixer_layers", ())
    has_only_mlp = i in values.get("mlp_layers", ())
    attends = not has_only_mlp and (values.get("mixer_with_attention") or not has_mixer)
    has_mlp = has_only_mlp or not values.get("single_branch")
    is_sparse = values.get("num_experts", 0) > 0 and i not in values.get("dense_layers", ())
    has_both = values.get("mlp_and_experts") or values.get("shortcut_experts")
    stream_scale = values.get("stream_scale", 1.0)
    before_mixer, before_mlp = values.get("mixer_stream_scale"), values.get("mlp_stream_scale")
    is_output = i in values.get("output_norm_layers", ())
    return LayerConfig(
        attention=_attention(values, i) if attends else None,
        mixer=values["mixer"] if has_mixer else None,
        mlp=_mlp(values, i) if has_mlp and (has_both or not is_sparse) else None,
        moe=_moe(values) if has_mlp and is_sparse else None,
        norm_order="output" if is_output else values.get("norm_order", "pre"),
        stream_scales=(
            before_mixer if has_mixer and before_mixer is not None else stream_scale,
            stream_scale if before_mlp is None else before_mlp,
        ),
        is_parallel=values.get("parallel_residual", False),
        shared_norm=values.get("shared_norm", False),
        inner_norms=values.get("inner_norms", False),
        mixer_activation=values.get("mixer_activation") or values["activation"],
        mixer_out_scale=values.get("mixer_out_scale", 1.0),
        has_scale=values.get("layer_scales", False),
        is_shortcut=bool(is_sparse and values.get("shortcut_experts")),
        file_layer=values["file_layers"][i] if values.get("file_layers") else i,
    )


def _sizes(values: Named, i: int) -> LayerSizes:
    if values.get("layer_sizes"):
        sizes: LayerSizes = values["layer_sizes"][i]
        return sizes
    names = ("head_dim", "num_kv_heads", "intermediate_size", "num_heads")
    return LayerSizes(**{name: values[name] for name in names})


def _attention(values: Named, i: int) -> Attention:
    sizes, latent = _sizes(values, i), values.get("latent")
    value_dim = values.get("value_size") or sizes.head_dim
    scores, sources = _scores(values, i), values.get("kv_sources") or ()
    rope = values["rope"]
    if scores.window is not None and values.get("local_rope") is not None:
        rope = values["local_rope"]
    gate = OutputGate(values.get("gate_by_head", False), values.get("softplus_gate", False))
    return Attention(
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        values=Values(
            dim=value_dim if latent is None else latent.value_dim,
            normalized=values.get("value_norm", False),
            are_keys=i in values.get("keys_as_values", ()),
        ),
        scores=scores,
        bias=values["attention_bias"],
        output_bias=values["output_bias"],
        rope=rope if _is_rotated(values, i) else None,
        head_norms=_head_norms(values, i),
        gate=gate if values.get("attention_gate") else None,
        latent=latent,
        kv_source=sources[i] if sources and sources[i] != i else None,
        clip=values.get("clip_qkv"),
        in_scale=values.get("attention_in_scale", 1.0),
        out_scale=values.get("attention_out_scale", 1.0),
    )


def _is_rotated(values: Named, i: int) -> bool:
    return values["rope"] is not None and i not in values.get("unrotated_layers", ())


def _scores(values: Named, i: int) -> Scores:
    scalar, is_full = values.get("query_scalar"), i in values.get("full_layers", ())
    scalar = _sizes(values, i).head_dim if scalar is None else scalar
    window = None if is_full else values.get("sliding_window")
    sinks, growth = values.get("attention_sinks", False), values.get("query_growth")
    if growth is not None and growth.unrotated_only and i not in values.get("unrotated_layers", ()):
        growth = None
    return Scores(
        scale=float(scalar**-0.5),
        window=window,
        chunk=None if is_full else values.get("attention_chunk"),
        softcap=values.get("attention_softcap"),
        sinks=sinks and not (values.get("windowed_sinks") and window is None),
        alibi_scale=values.get("alibi_scale", 1.0) if values.get("alibi") else None,
        growth=None if growth is None else replace(growth, unrotated_only=False),
    )


def _head_norms(values: Named, i: int) -> HeadNorms | None:
    """Return the norms of queries and keys; without weights only rotated layers have them."""
    over, has_weights = values.get("qk_norm"), values.get("qk_norm_weights", True)
    if over is None or not (has_weights or i not in values.get("unrotated_layers", ())):
        return None
    return HeadNorms(over, values.get("qk_norm_after_rope", False), has_weights)


def _activation(values: Named) -> Activation:
    return Activation(
        kind=values["activation"],
        gated=values.get("gated", True),
        interleaved=values.get("interleaved_gate", False),
        limit=values.get("gate_limit"),
        scale=values.get("gate_scale", 1.0),
    )


def _mlp(values: Named, i: int) -> Mlp:
    sparsity = values.get("gate_sparsity") or ()
    return Mlp(
        intermediate_size=_sizes(values, i).intermediate_size,
        activation=_activation(values),
        bias=values["mlp_bias"],
        sparsity=sparsity[i] if sparsity else 0.0,
        out_scale=values.get("mlp_out_scale", 1.0),
    )


def _moe(values: Named) -> Moe:
    return Moe(
        num_experts=values["num_experts"],
        experts_per_token=values["experts_per_token"],
        expert_size=values["expert_size"],
        activation=_activation(values),
        router=values.get("router") or RouterConfig(),
        bias=values.get("expert_bias", False),
        shared_size=values.get("shared_expert_size", 0),
        shared_gate=values.get("shared_expert_gate", False),
        out_scale=values.get("experts_out_scale", 1.0),
        latent_size=values.get("expert_latent_size"),
        identity_experts=values.get("identity_experts", 0),
        identity_scale=values.get("identity_scale", 1.0),
    )
