"""The transformer decoder: one forward pass for every family, driven by its `ModelConfig`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from swiftchat.engine.comm.communicator import Communicator, SingleRank
from swiftchat.engine.comm.pipeline import Pipeline, SingleStage
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.kv_cache import KVCache, LayerKV
from swiftchat.engine.model.moe import Experts
from swiftchat.engine.model.norms import norm_widths_
from swiftchat.engine.schedule.batch import Batch
from swiftchat.weights.architectures.config import ModelConfig


@dataclass(frozen=True)
class LayerWeights:
    """One layer's tensors; matrices are [out, in], and may be packed.

    `qkv` stacks the query, key and value rows, `gate_up` the gate and up rows, or has only the
    latter where there is no gate; it and `down` are empty where there are `experts`. `attn_norm`
    and `mlp_norm` come before a branch, the `…_out_norm`s after it; None: no norm. `sinks`
    [heads] are scores without a value.
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
    experts: Experts | None = None

    @property
    def head_norms(self) -> tuple[Tensor, Tensor] | None:
        """The weights of the queries' and the keys' norm, where there are such."""
        if self.q_norm is None or self.k_norm is None:
            return None
        return self.q_norm, self.k_norm


@dataclass(frozen=True)
class DecoderWeights:
    """`embed` and `lm_head` are [vocab_size, hidden_size], maybe packed; the same when tied.

    Of several stages each has its own layers, and what comes before or after all of them is empty
    or None where another has it.

    `positions` [positions, hidden_size] are added to the embeddings. `project_in` and
    `project_out` stand between embeddings of another width and the layers.
    """

    embed: LinearWeight
    layers: Sequence[LayerWeights]
    final_norm: Tensor | None
    lm_head: LinearWeight
    positions: Tensor | None = None
    project_in: LinearWeight | None = None
    embed_norm: Tensor | None = None
    embed_norm_bias: Tensor | None = None
    final_norm_bias: Tensor | None = None
    project_out: LinearWeight | None = None
    lm_head_bias: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """What branches compute in."""
        return self.embed.dtype  # also of an empty one


class Ops(Protocol):
    """The operations of a layer, for one model on one device.

    `plan` brings a batch to the device; what it returns is handed to those that need it.
    The residual stream x is fp32 [n, hidden]; everything else has the weights' dtype.
    """

    heads_first: bool  # how the cache is laid out

    def plan(self, batch: Batch, cache: KVCache) -> Any: ...
    def embed(self, plan: Any, table: LinearWeight) -> Tensor:
        """Rows of the table for the batch's ids: the residual stream.

        Zeros for ids that are another rank's.
        """

    def norm_(self, x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Add a branch's output to the stream in place; return the stream's norm."""

    def add_normed_(self, x: Tensor, delta: Tensor, weight: Tensor) -> None:
        """Add the RMSNorm of a branch's output to the stream in place."""

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor: ...
    def attend(
        self,
        plan: Any,
        layer: int,
        qkv: Tensor,
        kv: LayerKV,
        norms: tuple[Tensor, Tensor] | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """Rotate, store in this layer's cache, attend; [n, heads * head_dim]. Destroys qkv.

        Queries and keys are first normed by `norms`, one weight for each, if there are any.
        """

    def gate(self, gate_up: Tensor) -> Tensor:
        """activation(gate) * up of [n, 2 * intermediate], the gate first.

        Without a gate, the activation of [n, intermediate].
        """

    def mixture(self, layer: int, x: Tensor, experts: Experts) -> Tensor:
        """What a layer's experts make of x [n, hidden]: fp32, same shape."""

    def last_rows(self, plan: Any, x: Tensor) -> Tensor:
        """The rows whose logits are wanted."""

    def logits(self, x: Tensor, lm_head: LinearWeight) -> Tensor:
        """fp32 [n, vocab_size]."""

    def copy_blocks(self, cache: KVCache, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (from, to) of all layers."""


class Decoder:
    """A model ready to run: configuration, weights, and the operations of its device.

    One of several `ranks`, or a rank of one of several `stages`, has the configuration and
    weights of its share of the model.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        ops: Ops,
        ranks: Communicator | None = None,
        stages: Pipeline | None = None,
    ) -> None:
        self.config = config
        self.weights = weights
        self.ops = ops
        self.ranks: Communicator = SingleRank() if ranks is None else ranks
        self.stages: Pipeline = SingleStage() if stages is None else stages
        # `through_layers`, or what computes the same (`engine.model.traced_layers`).
        self.layers: Callable[[Any, Tensor, KVCache], Tensor] = self.through_layers
        # Models are trained with the factor in the dtype of their weights.
        factor = torch.tensor(config.embedding_scale, dtype=weights.dtype)
        self.embedding_scale = float(factor)

    def forward(self, batch: Batch, cache: KVCache) -> Tensor | None:
        """Compute the batch, write its keys and values to the cache, and return the logits.

        fp32 [len(batch.sampled_rows), vocab_size], for the tokens of `batch.logits_indices`. With
        several ranks, only this rank's columns, for `Communicator.all_gather`. With several
        stages, all but the last return None.
        """
        plan = self.ops.plan(batch, cache)
        # The residual stream stays in fp32: single channels of it reach 25,000 in small models,
        # where bf16 counts in steps of 128.
        if self.stages.is_first:
            x = self.embedded(plan)
        else:
            x = self.stages.receive(len(plan.ids), self.config.hidden_size)
        normed = self.layers(plan, x, cache)
        if self.stages.is_last:
            return self.logits(plan, normed)
        self.stages.send(x)
        return None

    def through_layers(self, plan: Any, x: Tensor, cache: KVCache) -> Tensor:
        """Add this stage's layers to the stream x in place; return its last norm, if there is one.

        The norm after the last branch of a "post" model is at the end of every stage.
        """
        weights, delta = self.weights, None
        for i, (layer, kv) in enumerate(zip(weights.layers, cache.layers, strict=True)):
            normed = self._normed(x, delta, layer.attn_norm, layer.attn_norm_bias)
            if self.config.parallel_residual:
                same = self.config.shared_norm
                read = (
                    normed if same else self._normed(x, None, layer.mlp_norm, layer.mlp_norm_bias)
                )
                both = self._attention(plan, i, layer, normed, kv) + self._ffn(i, layer, read)
                delta = self.ranks.all_reduce(both)
                continue
            out = self._attention(plan, i, layer, normed, kv)
            delta = self._to_add(x, out, layer.attn_out_norm)
            normed = self._normed(x, delta, layer.mlp_norm, layer.mlp_norm_bias)
            delta = self._to_add(x, self._ffn(i, layer, normed), layer.mlp_out_norm)
        return self._normed(x, delta, weights.final_norm, weights.final_norm_bias)

    def embedded(self, plan: Any) -> Tensor:
        """The residual stream before the first layer; of several stages the first can tell."""
        weights, ops = self.weights, self.ops
        x = self.ranks.all_reduce(ops.embed(plan, weights.embed))
        if self.embedding_scale != 1.0:
            x *= self.embedding_scale
        if weights.project_in is not None:
            x = ops.linear(x.to(weights.embed.dtype), weights.project_in, None).float()
        if weights.positions is not None:
            x += weights.positions[plan.positions].float()
        if weights.embed_norm is not None:
            x = self._normed(x, None, weights.embed_norm, weights.embed_norm_bias).float()
        return x

    def _normed(
        self, x: Tensor, delta: Tensor | None, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        """Add `delta` to the stream x in place; what the next branch reads of it."""
        if weight is None:
            if delta is not None:
                x += delta
            return x.to(self.weights.dtype)
        normed = self.ops.norm_(x, delta, weight, bias)
        if self.config.norm_order in ("post", "stream"):
            x.copy_(normed)
            x *= self.config.stream_scale
        return normed

    def _attention(self, plan: Any, i: int, layer: LayerWeights, x: Tensor, kv: LayerKV) -> Tensor:
        """What this rank's heads add to the attention's output."""
        ops = self.ops
        qkv = ops.linear(x, layer.qkv, layer.qkv_bias)
        norms = layer.head_norms
        if norms is not None and self.config.qk_norm == "width" and self.ranks.size > 1:
            norm_widths_(qkv, *norms, self.config, self.ranks)
            norms = None
        out = ops.attend(plan, i, qkv, kv, norms, layer.sinks)
        return ops.linear(out, layer.o, layer.o_bias)

    def _ffn(self, i: int, layer: LayerWeights, x: Tensor) -> Tensor:
        """What this rank adds to the FFN's output."""
        ops = self.ops
        if layer.experts is not None:
            return ops.mixture(i, x, layer.experts)
        inner = ops.gate(ops.linear(x, layer.gate_up, layer.gate_up_bias))
        return ops.linear(inner, layer.down, layer.down_bias)

    def _to_add(self, x: Tensor, partial: Tensor, weight: Tensor | None) -> Tensor | None:
        """What the next norm is to add to the stream x, of what each rank has of it.

        None where a branch's own norm did.
        """
        out = self.ranks.all_reduce(partial)
        if weight is None:
            return out
        self.ops.add_normed_(x, out, weight)
        return None

    def logits(self, plan: Any, normed: Tensor) -> Tensor:
        """What `forward` returns, of the last layer's norm; of several stages the last can tell."""
        weights, rows = self.weights, self.ops.last_rows(plan, normed)
        if weights.project_out is not None:
            rows = self.ops.linear(rows, weights.project_out, None)
        logits = self.ops.logits(rows, weights.lm_head)
        if weights.lm_head_bias is not None:
            logits += weights.lm_head_bias
        return self.cap_(logits)

    def cap_(self, logits: Tensor) -> Tensor:
        """Soft-cap the logits in place, where the model does."""
        cap = self.config.logit_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


def resident_bytes(weights: DecoderWeights) -> int:
    """Bytes of all weights, a tensor that serves twice counted once."""
    tensors = [tensor for matrix in _matrices(weights) for tensor in matrix.tensors]
    for owner in (weights, *weights.layers):
        tensors += [value for value in vars(owner).values() if isinstance(value, Tensor)]
    for layer in weights.layers:
        tensors += layer.experts.tensors if layer.experts is not None else []
    return sum({t.data_ptr(): t.nbytes for t in tensors}.values())


def table_bytes(weights: DecoderWeights, is_last: bool) -> int:
    """Bytes of the embeddings, unless they are the `lm_head` of the last stage as well."""
    is_head = is_last and weights.embed is weights.lm_head
    return 0 if is_head else weights.embed.nbytes


def has_quantized(weights: DecoderWeights) -> bool:
    """Whether any matrix is quantized."""
    return any(matrix.is_quantized for matrix in _matrices(weights))


def _matrices(weights: DecoderWeights) -> Iterator[LinearWeight]:
    yield from (weights.embed, weights.lm_head)
    yield from (w for w in (weights.project_in, weights.project_out) if w is not None)
    for layer in weights.layers:
        yield from (layer.qkv, layer.o, layer.gate_up, layer.down)
        for expert in layer.experts.all if layer.experts is not None else ():
            yield from (expert.gate_up, expert.down)
