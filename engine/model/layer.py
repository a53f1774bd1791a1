"""A layer: its branches, the norms before and after them, and what it does to the stream."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.model import altup
from swiftchat.engine.model.attention_part import AttentionPart
from swiftchat.engine.model.kv_cache import LayerKV
from swiftchat.engine.model.mlp import mlp, scaled
from swiftchat.engine.model.moe import ExpertNorms
from swiftchat.engine.model.ops import Ops
from swiftchat.engine.model.weights import LayerWeights
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.parts.layers import LayerConfig

# Weight and bias of a norm, if it has them.
NormWeights = tuple[Tensor | None, Tensor | None]


def norm_stream_(
    ops: Ops,
    x: Tensor,
    delta: Tensor | None,
    weights: NormWeights,
    dtype: torch.dtype,
    stream_scale: float | None = None,
) -> Tensor:
    """Add `delta` to the stream x in place; return the input of the next branch, in `dtype`.

    With `stream_scale` it becomes the stream too, multiplied by that.
    """
    weight, bias = weights
    if weight is None:
        if delta is not None:
            ops.add_(x, delta)
        return ops.cast(x, dtype)
    normed = ops.norm_(x, delta, weight, bias)
    if stream_scale is not None:
        ops.replace_(x, normed, stream_scale)
    return normed


@dataclass(frozen=True)
class Layer:
    """Layer `number` of a model, or of this rank's and stage's shard of it.

    The stream x is changed in place. A branch's output `delta` is added to it by the next norm.
    """

    model: ModelConfig
    number: int
    weights: LayerWeights
    ops: Ops
    ranks: Communicator
    dtype: torch.dtype  # of the activations within a branch

    @property
    def config(self) -> LayerConfig:
        return self.model.layers[self.number]

    @property
    def _has_only_mlp(self) -> bool:
        return self.config.attention is None and self.config.mixer is None

    def first_branch(
        self, plan: Any, x: Tensor, delta: Tensor | None, kv: LayerKV, keep: Callable[[], None]
    ) -> Tensor:
        """Add `delta` and return the output of the first branch, or of both if they are parallel.

        On all ranks. `keep` is called when x is the stream before the layer.
        """
        weights = self.weights
        if self._has_only_mlp:
            normed = self._norm(x, delta, (weights.mlp_norm, weights.mlp_norm_bias), 1)
            keep()
            return self.ranks.all_reduce(self._mlp(normed))
        normed = self._norm(x, delta, (weights.attn_norm, weights.attn_norm_bias), 0)
        keep()
        if not self.config.is_parallel:
            return self.ranks.all_reduce(self._mix(plan, normed, kv))
        mlp_input = normed
        if not self.config.shared_norm:
            mlp_input = self._norm(x, None, (weights.mlp_norm, weights.mlp_norm_bias), 1)
        out = self._mix(plan, normed, kv)
        return self.ranks.all_reduce(self.ops.add(out, self._mlp(mlp_input)))

    def store(self, plan: Any, x: Tensor, kv: LayerKV) -> None:
        """Write the keys and values for the stream x to the cache, and compute nothing else."""
        weights = self.weights
        normed = self._norm(x, None, (weights.attn_norm, weights.attn_norm_bias), 0)
        self._attention().store(plan, normed, kv)

    def second_branch(
        self, x: Tensor, delta: Tensor | None, shortcut: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Add `delta`, compute MLP and experts; return their output and that for a later layer.

        `shortcut` is the output of an earlier layer's experts, which this layer adds.
        """
        delta = self._after(x, delta, self.weights.attn_out_norm)
        out, shortcut = self._mlp_branch(x, delta, shortcut)
        return self._after(x, out, self.weights.mlp_out_norm), shortcut

    def _mlp_branch(
        self, x: Tensor, delta: Tensor | None, shortcut: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        ops, weights = self.ops, self.weights
        normed = self._norm(x, delta, (weights.mlp_norm, weights.mlp_norm_bias), 1)
        if weights.expert_norms is not None:
            return self._mlp_and_experts(weights.expert_norms, x, normed), None
        out = self._mlp(normed)
        if self.config.is_shortcut and weights.experts is not None:
            shortcut = ops.moe(self.number, normed, weights.experts)
        elif shortcut is not None:
            out, shortcut = ops.add(shortcut, out), None
        return self.ranks.all_reduce(out), shortcut

    def finish(self, x: Tensor, own: Tensor | None) -> None:
        """Add the branch of the layer's own embeddings `own`, then scale the stream, if it does."""
        weights = self.weights
        if weights.per_layer is not None and own is not None:
            self.ops.add_(x, self.ops.per_layer_branch(x, own, weights.per_layer))
        if weights.scale is not None:
            self.ops.scale_(x, weights.scale)

    def update_streams(self, plan: Any, kv: LayerKV, streams: Tensor, own: Tensor) -> Tensor:
        """Return the residual streams after the layer; one of them goes through its branches."""
        config, ops, weights = self.model, self.ops, self.weights
        assert config.streams and weights.streams and weights.residual and weights.per_layer
        active, eps = config.streams.active, config.norm.eps
        predicted = altup.predict(streams, active, weights.streams, eps)
        x = predicted[active].clone()
        normed = self._norm(x, None, (weights.attn_norm, None), 0)
        out = self.ranks.all_reduce(self._mix(plan, normed, kv))
        self._after(x, out, weights.attn_out_norm)
        narrow = ops.linear(normed, weights.residual.left, None)
        ops.add_norm_(x, ops.linear(narrow, weights.residual.right, None), weights.residual.norm)
        ops.add_(x, normed)
        ops.scale_(x, 2**-0.5)
        out = self._mlp(self._norm(x, None, (weights.mlp_norm, None), 1))
        self._after(x, self.ranks.all_reduce(out), weights.mlp_out_norm)
        streams = altup.correct(predicted, x, active, weights.streams, eps)
        x = streams[active]
        if weights.streams.scale is not None:
            x = x * weights.streams.scale
        streams[1:] += ops.per_layer_branch(x, own, weights.per_layer)
        return streams

    def _mix(self, plan: Any, x: Tensor, kv: LayerKV) -> Tensor:
        """Return this rank's part of the attention's or mixer's output, before the all-reduce."""
        mixed: Tensor | None = None
        if self.weights.mixer is not None:
            mixed = self.ops.mix(plan, self.number, x, self.weights.mixer, self.ranks)
            mixed = scaled(mixed, self.config.mixer_out_scale, self.ops)
        if self.config.attention is None:
            assert mixed is not None
            return mixed
        out = self._attention()(plan, x, kv)
        return out if mixed is None else self.ops.add(out, mixed)

    def _attention(self) -> AttentionPart:
        config, norm, weights = self.config.attention, self.model.norm, self.weights
        assert config is not None
        return AttentionPart(config, norm, weights, self.number, self.ops, self.ranks)

    def _mlp(self, x: Tensor) -> Tensor:
        """Return this rank's part of the MLP's output, before the all-reduce."""
        return mlp(self.number, self.weights, x, self.model, self.ops)

    def _mlp_and_experts(self, norms: ExpertNorms, x: Tensor, normed: Tensor) -> Tensor:
        """Return the sum of the norms of the MLP's and the experts' outputs, on all ranks."""
        ops, reduce, experts = self.ops, self.ranks.all_reduce, self.weights.experts
        assert experts is not None
        dense = ops.cast(reduce(self._mlp(normed)), torch.float32)
        router_input = ops.norm_(x, None, norms.router, None)
        inputs = ops.norm_(x, None, norms.experts, None)
        sparse = reduce(ops.moe(self.number, inputs, experts, router_input))
        return ops.add(
            ops.norm_(dense, None, norms.dense_out, None),
            ops.norm_(sparse, None, norms.experts_out, None),
        )

    def _norm(self, x: Tensor, delta: Tensor | None, weights: NormWeights, branch: int) -> Tensor:
        is_in_stream = self.config.norm_order in ("post", "stream")
        scale = self.config.stream_scales[branch] if is_in_stream else None
        return norm_stream_(self.ops, x, delta, weights, self.dtype, scale)

    def _after(self, x: Tensor, out: Tensor | None, weight: Tensor | None) -> Tensor | None:
        """Return a branch's output for the next norm to add to the stream x.

        With an output norm, add its norm to x now and return None.
        """
        if weight is None or out is None:
            return out
        self.ops.add_norm_(x, out, weight)
        return None
