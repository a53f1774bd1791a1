"""Weights from a checkpoint's layout to the layout that the decoder computes with.

Only tensors that change are copied: none, for models in Llama's layout.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from swiftchat.engine.model.decoder import DecoderWeights, LayerWeights
from swiftchat.engine.model.moe import Experts
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES

# Fields of `LayerWeights` and `Expert` by the canonical names of the matrices in the file.
_FIELDS = {"qkv": "qkv", "o": "o", "up": "gate_up", "down": "down"}
_EXPERT_FIELDS = {"experts_gate_up": "gate_up", "experts_down": "down"}


def canonicalize(config: ModelConfig, weights: DecoderWeights) -> DecoderWeights:
    """Return the weights in the decoder's layout, given those in the checkpoint's layout."""
    rows, order = qkv_rows(config), head_order(config)
    layers = [_layer(config, layer, rows, order) for layer in weights.layers]
    changes: dict[str, Any] = {"layers": layers}
    if config.norm_order == "post":
        changes = _post_to_pre_norms(layers)
    if weights.positions is not None and config.position_offset:
        changes["positions"] = weights.positions[config.position_offset :]
    return dataclasses.replace(weights, **changes)


def _layer(
    config: ModelConfig, layer: LayerWeights, rows: Tensor | None, order: Tensor | None
) -> LayerWeights:
    changes: dict[str, Any] = {}
    for name in ARCHITECTURES[config.architecture].transposed & _FIELDS.keys():
        field = _FIELDS[name]
        changes[field] = getattr(layer, field).transposed(copy=True)
    if layer.experts is not None:
        changes["experts"] = _experts(config, layer.experts)
    if rows is not None:
        changes["qkv"] = changes.get("qkv", layer.qkv).reordered(rows)
        if layer.qkv_bias is not None:
            changes["qkv_bias"] = layer.qkv_bias[rows.to(layer.qkv_bias.device)]
    if order is not None and layer.q_norm is not None and layer.k_norm is not None:
        for field in ("q_norm", "k_norm"):
            weight: Tensor = getattr(layer, field)
            heads = weight.view(-1, config.head_dim)
            changes[field] = heads[:, order.to(weight.device)].reshape(-1)
    return dataclasses.replace(layer, **changes) if changes else layer


def _experts(config: ModelConfig, experts: Experts) -> Experts:
    """Transpose experts as views: they are most of a model, and each is used rarely."""
    names = ARCHITECTURES[config.architecture].transposed & _EXPERT_FIELDS.keys()
    fields = [_EXPERT_FIELDS[name] for name in names]
    each = [
        dataclasses.replace(
            expert, **{field: getattr(expert, field).transposed(copy=False) for field in fields}
        )
        for expert in experts.each
    ]
    return dataclasses.replace(experts, each=each)


def qkv_rows(config: ModelConfig) -> Tensor | None:
    """Return, for each row of the decoder's q k v, its row in the file; None: the same order.

    The decoder's are all query heads, all key heads, all value heads, with the elements of a
    query's and a key's head in `head_order`.
    """
    order, grouped = head_order(config), ARCHITECTURES[config.architecture].qkv_in_groups
    if order is None and not grouped:
        return None
    num_heads, num_kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    all_heads = torch.arange(num_heads + 2 * num_kv_heads)
    if grouped:
        groups = all_heads.view(num_kv_heads, -1)
        q, k, v = groups[:, :-2].reshape(-1), groups[:, -2], groups[:, -1]
    else:
        q, k, v = torch.split(all_heads, [num_heads, num_kv_heads, num_kv_heads])
    unchanged = torch.arange(head_dim)
    rotary = unchanged if order is None else order
    parts = [
        (heads.unsqueeze(1) * head_dim + elements).reshape(-1)
        for heads, elements in ((q, rotary), (k, rotary), (v, unchanged))
    ]
    return torch.cat(parts)


def head_order(config: ModelConfig) -> Tensor | None:
    """Return, for each element of a decoder's head, its element in the file; None: the same order.

    The decoder rotates element j of a head with element j + head_dim / 2, for all j. Other pairs
    are moved there, and elements without rotation come after the pairs of each half, where the
    angles are zero: dot products of queries and keys do not change.
    """
    rope, head_dim = config.rope, config.head_dim
    if rope is None or (rope.rotary_dim is None and not rope.interleaved):
        return None
    rotated = rope.rotary_dim or head_dim
    pairs = torch.arange(rotated)
    pairs = pairs.view(-1, 2).t() if rope.interleaved else pairs.view(2, -1)
    rest = torch.arange(rotated, head_dim).view(2, -1)
    return torch.cat([pairs, rest], 1).reshape(-1)


def _post_to_pre_norms(layers: Sequence[LayerWeights]) -> dict[str, Any]:
    """Turn the norm after each branch into one before the next, and the last into `final_norm`."""
    names = ("attn_norm", "attn_norm_bias", "mlp_norm", "mlp_norm_bias")
    before: tuple[Tensor | None, Tensor | None] = (None, None)
    moved = []
    for layer in layers:
        after_attention = (layer.attn_norm, layer.attn_norm_bias)
        norms: dict[str, Any] = dict(zip(names, before + after_attention, strict=True))
        moved.append(dataclasses.replace(layer, **norms))
        before = (layer.mlp_norm, layer.mlp_norm_bias)
    return {"layers": moved, "final_norm": before[0], "final_norm_bias": before[1]}
