"""The weights of a decoder: of its layers, and of what comes before and after them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.altup import LowRankResidual, StreamMixing, StreamProjections
from swiftchat.engine.model.latent_attention import LatentWeights
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.moe import ExpertNorms, Experts
from swiftchat.engine.model.per_layer import PerLayerBranch, PerLayerTable


@dataclass(frozen=True)
class TokenInput:
    """What attention reads besides the stream: the norm of each token's embedding (EAGLE-3).

    The rows of `qkv` give queries, keys and values, which are added to those of the stream.
    """

    embed: LinearWeight
    norm: Tensor
    qkv: LinearWeight


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer; matrices are [out, in].

    `qkv` merges the query, key and value rows, `gate_up` the gate and up rows, or holds only up
    rows if the MLP has no gate; it and `down` are empty in a layer with `experts` but without
    `expert_norms`. `attn_norm` and `mlp_norm` come before a branch, `attn_out_norm` and
    `mlp_out_norm` after it; None: no norm. `sinks` [num_heads] are attention scores without a
    value. `attn_inner_norm` and `mlp_inner_norm` come before `o` and `down`; `xielu` fp32 [2] are
    the parameters of xIELU. `attn_gate` has a row for each element of the attention's output. With
    `latent` the rows of `qkv` are those of the queries, or of their low-rank projection, and of the
    latents. A layer with a `mixer` has no attention but beside it. At the end of a layer
    `per_layer` adds the token's embedding for it, then the stream is multiplied by `scale` [1].
    `residual` is added to the attention's output; `streams` update the others. `token_input` is
    read by the attention, too.
    """

    attn_norm: Tensor | None
    qkv: LinearWeight
    qkv_bias: Tensor | None
    o: LinearWeight
    o_bias: Tensor | None
    mlp_norm: Tensor | None
    gate_up: LinearWeight
    gate_up_bias: Tensor | None
    down: LinearWeight
    down_bias: Tensor | None
    attn_norm_bias: Tensor | None = None
    mlp_norm_bias: Tensor | None = None
    attn_out_norm: Tensor | None = None
    mlp_out_norm: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    sinks: Tensor | None = None
    attn_inner_norm: Tensor | None = None
    mlp_inner_norm: Tensor | None = None
    xielu: Tensor | None = None
    experts: Experts | None = None
    attn_gate: LinearWeight | None = None
    mixer: MixerWeights | None = None
    latent: LatentWeights | None = None
    per_layer: PerLayerBranch | None = None
    scale: Tensor | None = None
    expert_norms: ExpertNorms | None = None
    streams: StreamMixing | None = None
    residual: LowRankResidual | None = None
    token_input: TokenInput | None = None

    @property
    def head_norms(self) -> tuple[Tensor, Tensor] | None:
        """The weights of the norms of queries and keys, if the model has them.

        Those of keys are empty in a layer that has none of its own.
        """
        if self.q_norm is None:
            return None
        return self.q_norm, self.q_norm[:0] if self.k_norm is None else self.k_norm


@dataclass(frozen=True)
class DecoderWeights:
    """The weights of a model or of one pipeline stage.

    `embed` and `lm_head` are [vocab_size, hidden_size], the same object if tied. A stage holds its
    own layers; weights of other stages are empty or None. `positions` [num_positions, hidden_size]
    are learned position embeddings. `project_in` and `project_out` convert between the width of
    the embeddings and that of the layers.
    """

    embed: LinearWeight
    layers: list[LayerWeights]
    final_norm: Tensor | None
    lm_head: LinearWeight
    positions: Tensor | None = None
    project_in: LinearWeight | None = None
    embed_norm: Tensor | None = None
    embed_norm_bias: Tensor | None = None
    final_norm_bias: Tensor | None = None
    project_out: LinearWeight | None = None
    lm_head_bias: Tensor | None = None
    per_layer: PerLayerTable | None = None
    streams: StreamProjections | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the activations within a branch."""
        return self.embed.dtype  # an empty one has it too


def resident_bytes(weights: DecoderWeights) -> int:
    """Bytes of all weights; a tensor with two uses counts once."""
    tensors = [tensor for matrix in _matrices(weights) for tensor in matrix.tensors]
    for owner in (weights, *weights.layers):
        tensors += [value for value in vars(owner).values() if isinstance(value, Tensor)]
    for layer in weights.layers:
        tensors += layer.experts.tensors if layer.experts is not None else []
        tensors += layer.mixer.tensors if layer.mixer is not None else []
        tensors += layer.latent.tensors if layer.latent is not None else []
        tensors += [] if layer.per_layer is None else [layer.per_layer.out_norm]
        tensors += [] if layer.streams is None else layer.streams.tensors
        tensors += [] if layer.residual is None else [layer.residual.norm]
        tensors += [] if layer.expert_norms is None else vars(layer.expert_norms).values()
        tensors += [] if layer.token_input is None else [layer.token_input.norm]
    if weights.per_layer is not None:
        tensors += [weights.per_layer.project, weights.per_layer.norm]
    if weights.streams is not None:
        tensors += [weights.streams.into, weights.streams.out]
    return sum({t.data_ptr(): t.nbytes for t in tensors}.values())


def table_bytes(weights: DecoderWeights, is_last: bool) -> int:
    """Bytes of the embeddings, unless they are the `lm_head` of the last stage as well.

    With those for each layer.
    """
    is_head = is_last and weights.embed is weights.lm_head
    per_layer = 0 if weights.per_layer is None else weights.per_layer.embed.nbytes
    return per_layer + (0 if is_head else weights.embed.nbytes)


def expert_bytes(weights: DecoderWeights, layers: Collection[int] | None = None) -> int:
    """Bytes of the routed experts of some or all layers: a token reads only the chosen ones."""
    routed = (
        layer.experts.each
        for i, layer in enumerate(weights.layers)
        if layer.experts is not None and (layers is None or i in layers)
    )
    return sum(t.nbytes for experts in routed for expert in experts for t in expert.tensors)


def has_quantized(weights: DecoderWeights) -> bool:
    """Return whether any matrix is quantized."""
    return any(matrix.is_quantized for matrix in _matrices(weights))


def _matrices(weights: DecoderWeights) -> Iterator[LinearWeight]:
    yield from (weights.embed, weights.lm_head)
    yield from (() if weights.per_layer is None else (weights.per_layer.embed,))
    yield from (w for w in (weights.project_in, weights.project_out) if w is not None)
    for layer in weights.layers:
        yield from (layer.qkv, layer.o, layer.gate_up, layer.down)
        yield from (() if layer.attn_gate is None else (layer.attn_gate,))
        yield from (() if layer.mixer is None else layer.mixer.matrices)
        yield from (() if layer.latent is None else layer.latent.matrices)
        yield from (() if layer.per_layer is None else layer.per_layer.matrices)
        yield from (() if layer.residual is None else (layer.residual.left, layer.residual.right))
        yield from (() if layer.token_input is None else (layer.token_input.qkv,))
        for expert in layer.experts.all if layer.experts is not None else ():
            yield from (expert.gate_up, expert.down)
