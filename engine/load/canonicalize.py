"""Weights from a checkpoint's layout to the layout that the decoder computes with.

Only tensors that change are copied: none, for models in Llama's layout.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from swiftchat.engine.linear.merged import MergedWeight
from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.moe import Experts
from swiftchat.engine.model.weights import DecoderWeights, LayerWeights
from swiftchat.weights.architectures.parts.attention import NO_ATTENTION, Attention
from swiftchat.weights.architectures.parts.mixers import StateMixer
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import RopeConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import gate_in_queries

# Fields of `LayerWeights` and `Expert` by the canonical names of the matrices in the file.
_FIELDS = {"qkv": "qkv", "o": "o", "up": "gate_up", "down": "down"}
_EXPERT_FIELDS = {"experts_gate_up": "gate_up", "experts_down": "down"}


def canonicalize(config: ModelConfig, weights: DecoderWeights) -> DecoderWeights:
    """Return the weights in the decoder's layout, given those in the checkpoint's layout.

    The layers of `weights` are replaced, so that memory for one of them is enough.
    """
    weights = _norms_with_weights(config, weights)
    orders, layers = _Orders(config), weights.layers
    for i in range(len(layers)):  # in place: what a layer had is released before the next one
        layers[i] = _layer(config, i, orders, layers[i])
    changes: dict[str, Any] = {"layers": layers}
    if config.layers[0].norm_order == "post":
        changes = _post_to_pre_norms(layers)
    positions = config.embeddings.positions
    if weights.positions is not None and positions is not None and positions.offset:
        changes["positions"] = weights.positions[positions.offset :]
    return dataclasses.replace(weights, **changes)


def _norms_with_weights(config: ModelConfig, weights: DecoderWeights) -> DecoderWeights:
    """Return the weights with those of all norms: ones where the file has none.

    The weights of LayerNorms that are stored minus one get it back.
    """
    adds_one = config.norm.kind == "layer" and config.norm.unit_offset
    head_norms = [each.head_norms for each in config.attentions]
    has_all = all(each is None or each.has_weights for each in head_norms)
    if config.norm.has_weights and has_all and not adds_one:
        return weights
    like = next(iter(weights.layers[0].o.tensors))
    ones = torch.ones(config.hidden_size, dtype=weights.dtype, device=like.device)
    changes: dict[str, Any] = {}
    if not config.norm.has_weights:
        changes = dict.fromkeys(("attn_norm", "mlp_norm"), ones)
        weights = dataclasses.replace(
            weights,
            final_norm=ones if config.head.has_norm else None,
            embed_norm=ones if config.embeddings.has_norm else None,
        )
    layers = [dataclasses.replace(layer, **changes) for layer in weights.layers]
    if not has_all:
        layers = [
            _with_head_norms(part.attention, layer, ones)
            for part, layer in zip(config.layers, layers, strict=True)
        ]
    if adds_one:
        layers = [
            dataclasses.replace(
                layer,
                attn_norm=None if layer.attn_norm is None else layer.attn_norm + 1,
                mlp_norm=None if layer.mlp_norm is None else layer.mlp_norm + 1,
            )
            for layer in layers
        ]
        final = weights.final_norm
        weights = dataclasses.replace(weights, final_norm=None if final is None else final + 1)
    return dataclasses.replace(weights, layers=layers)


def _with_head_norms(
    attention: Attention | None, layer: LayerWeights, ones: Tensor
) -> LayerWeights:
    """Return a layer with ones as weights of its norms of queries and keys, if it has them."""
    if attention is None or attention.head_norms is None:
        return layer
    weights = ones[:1].repeat(attention.head_dim)
    return dataclasses.replace(layer, q_norm=weights, k_norm=weights)


class _Orders:
    """The attention of each layer, with the orders of its rows and of the elements of a head.

    Layers without rotation have the order of the first rotated one.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._config, self._rope = config, config.rope
        self._found: dict[Attention, _Order] = {}

    def of_layer(self, i: int) -> "_Order":
        attention = self._config.layers[i].attention
        if attention is None:
            return _Order(NO_ATTENTION, None, None)
        if attention not in self._found:
            rope = attention.rope or self._rope
            rows = qkv_rows(self._config, attention, rope)
            self._found[attention] = _Order(attention, rows, head_order(rope, attention.head_dim))
        return self._found[attention]


@dataclasses.dataclass(frozen=True)
class _Order:
    """The attention of a layer; for each of its rows and of a head's elements that in the file."""

    attention: Attention
    rows: Tensor | None
    elements: Tensor | None


def _layer(config: ModelConfig, i: int, orders: _Orders, layer: LayerWeights) -> LayerWeights:
    changes: dict[str, Any] = {}
    found = orders.of_layer(i)
    attention, rows, order = found.attention, found.rows, found.elements
    if layer.attn_gate is not None and attention.gate is not None and attention.gate.by_head:
        # One row for each element of a head: its gate is computed as any other.
        changes["attn_gate"] = layer.attn_gate.repeated(attention.values.dim)
    for name in ARCHITECTURES[config.architecture].transposed & _FIELDS.keys():
        field = _FIELDS[name]
        changes[field] = getattr(layer, field).transposed(copy=True)
    if layer.experts is not None:
        changes["experts"] = _experts(config, layer.experts)
    if layer.latent is not None:
        kv_b = layer.latent.kv_b
        by_head = kv_b.view(attention.num_heads, -1, kv_b.shape[1])
        changes["latent"] = dataclasses.replace(layer.latent, kv_b=by_head)
        if layer.qkv_bias is not None:  # queries that are projected directly, and indices
            missing = layer.qkv.shape[0] - len(layer.qkv_bias)
            sides = (missing, 0) if layer.latent.q_b is None else (0, missing)
            changes["qkv_bias"] = torch.nn.functional.pad(layer.qkv_bias, sides)
    if layer.expert_norms is not None:
        # The router reads the norm multiplied by this scale and divided by √hidden_size.
        router = layer.expert_norms.router * config.hidden_size**-0.5
        changes["expert_norms"] = dataclasses.replace(layer.expert_norms, router=router)
    if layer.mixer is not None:
        changes["mixer"] = _mixer(config.layers[i].mixer, layer.mixer)
    elif rows is not None:
        changes["qkv"] = changes.get("qkv", layer.qkv).reordered(rows)
        if layer.qkv_bias is not None:
            changes["qkv_bias"] = layer.qkv_bias[rows.to(layer.qkv_bias.device)]
    if order is not None and layer.q_norm is not None and layer.k_norm is not None:
        for field in ("q_norm", "k_norm"):
            weight: Tensor = getattr(layer, field)
            heads = weight.view(-1, attention.head_dim)
            changes[field] = heads[:, order.to(weight.device)].reshape(-1)
    elif layer.q_norm is not None and layer.k_norm is not None and layer.q_norm.ndim > 1:
        changes |= {"q_norm": layer.q_norm.reshape(-1), "k_norm": layer.k_norm.reshape(-1)}
    return dataclasses.replace(layer, **changes) if changes else layer


def _mixer(kind: StateMixer | None, mixer: MixerWeights) -> MixerWeights:
    rows = None if kind is None else kind.input_rows
    if rows is None:
        return mixer
    order, bias = torch.tensor(rows), mixer.project_in_bias
    return dataclasses.replace(
        mixer,
        project_in=mixer.project_in.reordered(order),
        project_in_bias=None if bias is None else bias[order.to(bias.device)],
    )


def _experts(config: ModelConfig, experts: Experts) -> Experts:
    """Transpose experts, and put all gate rows before the up rows.

    Transposed ones are views on the CPU: they are most of a model, each is used rarely.
    """
    names = ARCHITECTURES[config.architecture].transposed & _EXPERT_FIELDS.keys()
    fields, orders = [_EXPERT_FIELDS[name] for name in names], dict[str, Tensor]()
    if config.moe is not None and config.moe.activation.interleaved:
        orders["gate_up"] = torch.arange(2 * config.moe.expert_size).view(-1, 2).t().reshape(-1)
    each = []
    for expert in experts.each:
        changes: dict[str, Any] = {
            name: _transposed(getattr(expert, name), orders.get(name)) for name in fields
        }
        if orders and expert.gate_up_bias is not None:
            bias = expert.gate_up_bias
            changes["gate_up_bias"] = bias[orders["gate_up"].to(bias.device)]
        if "experts_gate" in ARCHITECTURES[config.architecture].tensors:
            changes = {"gate_up": _joined(expert.gate_up), "down": _contiguous(expert.down)}
        each.append(dataclasses.replace(expert, **changes))
    return dataclasses.replace(experts, each=each)


def _joined(weight: LinearWeight) -> LinearWeight:
    """Return gate and up as one matrix, if they are float tensors."""
    parts = weight.parts if isinstance(weight, MergedWeight) else ()
    plain = [part for part in parts if isinstance(part, PlainWeight)]
    if not plain or len(plain) < len(parts):
        return weight
    return dataclasses.replace(plain[0], tensor=torch.cat([part.tensor for part in plain]))


def _contiguous(weight: LinearWeight) -> LinearWeight:
    if not isinstance(weight, PlainWeight):
        return weight
    return dataclasses.replace(weight, tensor=weight.tensor.contiguous())


def _transposed(weight: LinearWeight, order: Tensor | None) -> LinearWeight:
    """Return a matrix of an expert transposed, whose row i is the old row `order[i]`.

    On a GPU a plain one is in the same memory, as kernels need it.
    """
    if not isinstance(weight, PlainWeight) or weight.tensor.device.type != "cuda":
        # Quantized ones are [outputs, inputs].
        whole = weight if weight.is_quantized else weight.transposed(copy=False)
        return whole if order is None else whole.reordered(order)
    tensor = weight.tensor
    columns, rows = tensor.shape
    moved = tensor.t() if order is None else tensor.t()[order.to(tensor.device)]
    tensor.view(-1).copy_(moved.contiguous().view(-1))
    return dataclasses.replace(weight, tensor=tensor.view(rows, columns))


def qkv_rows(config: ModelConfig, attention: Attention, rope: RopeConfig | None) -> Tensor | None:
    """Return, for each row of the decoder's q k v, its row in the file; None: the same order.

    The decoder's are all query heads, all key heads, all value heads, with the elements of a
    query's and a key's head in `head_order`. Gates among the query heads come after these.
    """
    order, grouped = (
        head_order(rope, attention.head_dim),
        ARCHITECTURES[config.architecture].qkv_in_groups,
    )
    gated = gate_in_queries(config)
    if order is None and not grouped and not gated:
        return None
    num_heads, num_kv_heads = attention.num_heads, attention.num_kv_heads
    head_dim, value_dim = attention.head_dim, attention.values.dim
    num_heads *= 1 + gated
    all_heads = torch.arange(num_heads + 2 * num_kv_heads)
    if grouped:
        groups = all_heads.view(num_kv_heads, -1)
        q, k, v = groups[:, :-2].reshape(-1), groups[:, -2], groups[:, -1]
    else:
        q, k, v = torch.split(all_heads, [num_heads, num_kv_heads, num_kv_heads])
    q, gates = (q[::2], q[1::2]) if gated else (q, q[:0])
    unchanged = torch.arange(head_dim)
    rotary = unchanged if order is None else order
    parts = [
        (heads.unsqueeze(1) * head_dim + elements).reshape(-1)
        for heads, elements in ((q, rotary), (gates, unchanged), (k, rotary))
    ]
    if value_dim == head_dim:
        parts.append((v.unsqueeze(1) * head_dim + unchanged).reshape(-1))
    else:  # the rows of values come last, in the order of the file
        parts.append(int(v[0]) * head_dim + torch.arange(num_kv_heads * value_dim))
    return torch.cat(parts)


def head_order(rope: RopeConfig | None, head_dim: int) -> Tensor | None:
    """Return, for each element of a decoder's head, its element in the file; None: the same order.

    The decoder rotates element j of a head with element j + head_dim / 2, for all j. Other pairs
    are moved there, and elements without rotation come after the pairs of each half, where the
    angles are zero: dot products of queries and keys do not change.
    """
    if rope is None or (rope.rotary_dim is None and not rope.interleaved and not rope.reversed):
        return None
    rotated = rope.rotary_dim or head_dim
    pairs = torch.arange(rotated)
    pairs = pairs.view(-1, 2).t() if rope.interleaved else pairs.view(2, -1)
    pairs = pairs.flip(0) if rope.reversed else pairs
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
