"""Brings weights from the order a family's files have into the one the decoder computes with.

Only tensors that change are copied: none, for models in Llama's layout.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.engine.linear.quantized import Weight
from swiftchat.engine.linear.w8a8 import reordered
from swiftchat.engine.model.decoder import DecoderWeights, LayerWeights
from swiftchat.engine.model.moe import Experts
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES

# Fields of `LayerWeights` by the canonical names of the matrices they hold in the file.
_FIELDS = {"qkv": "qkv", "o": "o", "up": "gate_up", "down": "down"}
_EXPERT_FIELDS = {"experts_gate_up": "gate_up", "experts_down": "down"}


def arrange(config: ModelConfig, weights: DecoderWeights) -> DecoderWeights:
    """The weights as `Decoder` wants them, out of those that lie in the file."""
    rows, order = qkv_rows(config), head_order(config)
    layers = [_layer(config, layer, rows, order) for layer in weights.layers]
    changes: dict[str, object] = {"layers": layers}
    if config.norm_order == "post":
        changes = _normed_later(layers)
    if weights.positions is not None and config.position_offset:
        changes["positions"] = weights.positions[config.position_offset :]
    return dataclasses.replace(weights, **changes)  # type: ignore[arg-type]


def _layer(
    config: ModelConfig, layer: LayerWeights, rows: Tensor | None, order: Tensor | None
) -> LayerWeights:
    changes: dict[str, Weight | Experts | None] = {}
    for name in ARCHITECTURES[config.architecture].transposed & _FIELDS.keys():
        field = _FIELDS[name]
        changes[field] = getattr(layer, field).t().contiguous()
    if layer.experts is not None:
        changes["experts"] = _experts(config, layer.experts)
    if rows is not None:
        index = rows.to(layer.qkv.device) if isinstance(layer.qkv, Tensor) else rows
        changes["qkv"] = reordered(changes.get("qkv", layer.qkv), index)  # type: ignore[arg-type]
        if layer.qkv_bias is not None:
            changes["qkv_bias"] = layer.qkv_bias[index]
    if order is not None and layer.q_norm is not None and layer.k_norm is not None:
        for field in ("q_norm", "k_norm"):
            weight: Tensor = getattr(layer, field)
            heads = weight.view(-1, config.head_dim)
            changes[field] = heads[:, order.to(weight.device)].reshape(-1)
    return dataclasses.replace(layer, **changes) if changes else layer  # type: ignore[arg-type]


def _experts(config: ModelConfig, experts: Experts) -> Experts:
    """Transposed ones as views: they are nearly all of a model, and seldom used."""
    names = ARCHITECTURES[config.architecture].transposed & _EXPERT_FIELDS.keys()
    fields = [_EXPERT_FIELDS[name] for name in names]
    each = [
        dataclasses.replace(expert, **{field: getattr(expert, field).t() for field in fields})
        for expert in experts.each
    ]
    return dataclasses.replace(experts, each=each)


def qkv_rows(config: ModelConfig) -> Tensor | None:
    """Which row of the file's fused q k v each row of ours is; None: they are in order.

    Ours are all query heads, all key heads, all value heads, with the numbers of a query's and
    a key's head in `head_order`.
    """
    order, grouped = head_order(config), ARCHITECTURES[config.architecture].qkv_in_groups
    if order is None and not grouped:
        return None
    heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
    all_heads = torch.arange(heads + 2 * kv_heads)
    if grouped:
        groups = all_heads.view(kv_heads, -1)
        q, k, v = groups[:, :-2].reshape(-1), groups[:, -2], groups[:, -1]
    else:
        q, k, v = torch.split(all_heads, [heads, kv_heads, kv_heads])
    plain = torch.arange(size)
    turned = plain if order is None else order
    parts = [
        (some.unsqueeze(1) * size + inside).reshape(-1)
        for some, inside in ((q, turned), (k, turned), (v, plain))
    ]
    return torch.cat(parts)


def head_order(config: ModelConfig) -> Tensor | None:
    """Which number of a query's or key's head in the file each of ours is; None: the same.

    The decoder rotates number j of a head with number j + head_dim / 2, all of them. What the
    model pairs otherwise is moved there, and what it does not rotate comes after the pairs of
    each half, where the angles are zero: products of queries and keys stay what they were.
    """
    rope, size = config.rope, config.head_dim
    if rope is None or (rope.rotary_dim is None and not rope.interleaved):
        return None
    rotated = rope.rotary_dim or size
    pairs = torch.arange(rotated)
    pairs = pairs.view(-1, 2).t() if rope.interleaved else pairs.view(2, -1)
    rest = torch.arange(rotated, size).view(2, -1)
    return torch.cat([pairs, rest], 1).reshape(-1)


def _normed_later(layers: Sequence[LayerWeights]) -> dict[str, object]:
    """A norm after each branch is one before the next, and the last is the model's last."""
    names = ("attn_norm", "attn_norm_bias", "mlp_norm", "mlp_norm_bias")
    before: tuple[Tensor | None, Tensor | None] = (None, None)
    moved = []
    for layer in layers:
        after_attention = (layer.attn_norm, layer.attn_norm_bias)
        norms = dict(zip(names, before + after_attention, strict=True))
        moved.append(dataclasses.replace(layer, **norms))  # type: ignore[arg-type]
        before = (layer.mlp_norm, layer.mlp_norm_bias)
    return {"layers": moved, "final_norm": before[0], "final_norm_bias": before[1]}
