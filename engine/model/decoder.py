"""The transformer decoder: one forward pass for every architecture, driven by `ModelConfig`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from swiftchat.engine.comm.communicator import Communicator, SingleRank
from swiftchat.engine.comm.pipeline import Pipeline, SingleStage
from swiftchat.engine.model import altup
from swiftchat.engine.model.hidden_states import LAST_NORM, HiddenStates
from swiftchat.engine.model.kv_cache import KVCache, LayerKV
from swiftchat.engine.model.mlp import mlp, scaled
from swiftchat.engine.model.moe import ExpertNorms
from swiftchat.engine.model.norms import norm_widths_
from swiftchat.engine.model.ops import Ops
from swiftchat.engine.model.weights import DecoderWeights, LayerWeights
from swiftchat.engine.schedule.batch import Batch
from swiftchat.weights.architectures.config import ModelConfig


class Decoder:
    """A model ready to run: configuration, weights, and the operations of its device.

    With several `ranks` or `stages`, configuration and weights are those of this rank's shard.
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
        # Models are trained with the scale in the dtype of their weights.
        scale = torch.tensor(config.embeddings.scale, dtype=weights.dtype)
        self.embedding_scale = float(scale) / config.residual_scale

    @property
    def workspace_bytes(self) -> int:
        """The memory that it keeps for activations; 0: each batch allocates its own."""
        return 0

    def forward(
        self, batch: Batch, cache: KVCache, hidden: HiddenStates | None = None
    ) -> Tensor | None:
        """Compute the batch, write its keys and values to the cache, and return the logits.

        fp32 [len(batch.logits_indices), vocab_size]. With several ranks, only this rank's columns,
        for `Communicator.all_gather`. With several stages, all but the last return None. `hidden`
        receives hidden states, on one rank and stage.
        """
        return self.forward_plan(self.ops.plan(batch, cache), cache, hidden)

    def forward_plan(
        self, plan: Any, cache: KVCache, hidden: HiddenStates | None = None
    ) -> Tensor | None:
        """As `forward`, for a batch that is on the device."""
        normed = self._forward_stages(plan, cache, hidden)
        return None if normed is None else self.logits(plan, normed, hidden)

    def forward_hidden(self, batch: Batch, cache: KVCache) -> Tensor | None:
        """As `forward`, but return the hidden states that the logits would be computed from.

        [len(batch.logits_indices), `hidden_width`], after the last norm, on all ranks of the last
        stage.
        """
        plan = self.ops.plan(batch, cache)
        normed = self._forward_stages(plan, cache)
        return None if normed is None else self._hidden(plan, normed)

    @property
    def hidden_width(self) -> int:
        """The number of elements of a hidden state: the LM head's columns."""
        return self.config.head_width

    def _forward_stages(
        self, plan: Any, cache: KVCache, hidden: HiddenStates | None = None
    ) -> Tensor | None:
        """Compute this stage; return the last norm of all tokens, None but on the last stage."""
        # The residual stream stays in fp32: channels of small models reach 25,000, where bf16 has
        # steps of 128.
        if self.stages.is_first:
            x = self.embed(plan)
        else:
            x = self.stages.receive(len(plan.ids), self.config.hidden_size)
        normed = self.forward_layers(plan, x, cache, hidden)
        if self.stages.is_last:
            return normed
        self.stages.send(x)
        return None

    def forward_layers(
        self, plan: Any, x: Tensor, cache: KVCache, hidden: HiddenStates | None = None
    ) -> Tensor:
        """Add the outputs of this stage's layers to the stream x in place; return its last norm.

        In a "post" model every stage ends with the norm after its last branch.
        """
        weights, delta = self.weights, None
        shortcut: Tensor | None = None  # the output of experts that a later layer adds
        own: Sequence[Tensor] = ()
        if weights.per_layer is not None:
            own = self.ops.per_layer_embeddings(plan, x, weights.per_layer)
        streams = None if weights.streams is None else altup.expand(x, weights.streams)
        for i, (layer, kv) in enumerate(zip(weights.layers, cache.layers, strict=True)):
            if streams is not None:
                streams = self._stream_layer(plan, i, layer, kv, streams, own[i])
                continue
            config = self.config.layers[i]
            if config.has_single_branch:
                delta = self._only_branch(plan, i, layer, kv, x, delta, hidden)
                continue
            delta = self._first_branch(plan, i, layer, kv, x, delta, hidden)
            if config.is_parallel:
                continue
            delta = self._add_branch(x, delta, layer.attn_out_norm)
            delta, shortcut = self._second_branch(plan, i, layer, x, delta, shortcut)
            delta = self._add_branch(x, delta, layer.mlp_out_norm)
            if layer.per_layer is not None:
                self.ops.add_(x, self.ops.per_layer_branch(x, own[i], layer.per_layer))
            if layer.scale is not None:
                self.ops.scale_(x, layer.scale)
        if streams is not None and weights.streams is not None:
            x.copy_(altup.collapse(streams, weights.streams))
        norms = weights.final_norm, weights.final_norm_bias
        normed = self._norm(x, delta, *norms, self._stream_scale(-1, 1))
        self.keep(hidden, len(weights.layers), x)
        return normed

    def _first_branch(
        self,
        plan: Any,
        i: int,
        layer: LayerWeights,
        kv: LayerKV,
        x: Tensor,
        delta: Tensor | None,
        hidden: HiddenStates | None,
    ) -> Tensor:
        """Return the output of a layer's attention or mixer; of both branches if they are parallel.

        On all ranks.
        """
        config = self.config.layers[i]
        norms = layer.attn_norm, layer.attn_norm_bias
        normed = self._norm(x, delta, *norms, self._stream_scale(i, 0))
        self.keep(hidden, i, x)
        if not config.is_parallel:
            return self.ranks.all_reduce(self._attention(plan, i, layer, normed, kv))
        mlp_input = normed
        if not config.shared_norm:
            norms = layer.mlp_norm, layer.mlp_norm_bias
            mlp_input = self._norm(x, None, *norms, self._stream_scale(i, 1))
        out = self._attention(plan, i, layer, normed, kv)
        return self.ranks.all_reduce(self.ops.add(out, self._mlp(i, layer, mlp_input)))

    def _second_branch(
        self,
        plan: Any,
        i: int,
        layer: LayerWeights,
        x: Tensor,
        delta: Tensor | None,
        shortcut: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of a layer's MLP and experts, and that of experts for a later layer."""
        ops, norms = self.ops, (layer.mlp_norm, layer.mlp_norm_bias)
        normed = self._norm(x, delta, *norms, self._stream_scale(i, 1))
        if layer.expert_norms is not None:
            return self._mlp_and_experts(i, layer, layer.expert_norms, x, normed), None
        out = self._mlp(i, layer, normed)
        if self.config.layers[i].is_shortcut and layer.experts is not None:
            shortcut = ops.moe(i, normed, layer.experts)
        elif shortcut is not None:
            out, shortcut = ops.add(shortcut, out), None
        return self.ranks.all_reduce(out), shortcut

    def _stream_layer(
        self, plan: Any, i: int, layer: LayerWeights, kv: LayerKV, streams: Tensor, own: Tensor
    ) -> Tensor:
        """Return the residual streams after a layer; one of them goes through its branches."""
        config, ops = self.config, self.ops
        assert config.streams and layer.streams and layer.residual and layer.per_layer
        active, eps = config.streams.active, config.norm.eps
        predicted = altup.predict(streams, active, layer.streams, eps)
        x = predicted[active].clone()
        normed = self._norm(x, None, layer.attn_norm, None)
        out = self.ranks.all_reduce(self._attention(plan, i, layer, normed, kv))
        self._add_branch(x, out, layer.attn_out_norm)
        narrow = ops.linear(normed, layer.residual.left, None)
        ops.add_norm_(x, ops.linear(narrow, layer.residual.right, None), layer.residual.norm)
        ops.add_(x, normed)
        ops.scale_(x, 2**-0.5)
        out = self._mlp(i, layer, self._norm(x, None, layer.mlp_norm, None))
        self._add_branch(x, self.ranks.all_reduce(out), layer.mlp_out_norm)
        streams = altup.correct(predicted, x, active, layer.streams, eps)
        x = streams[active]
        if layer.streams.scale is not None:
            x = x * layer.streams.scale
        streams[1:] += ops.per_layer_branch(x, own, layer.per_layer)
        return streams

    def keep(self, hidden: HiddenStates | None, layer: int, x: Tensor) -> None:
        """Store hidden states of a layer, if they are wanted."""
        if hidden is not None and layer in hidden.layers:
            scale = 1.0 if layer == LAST_NORM else self.config.residual_scale
            hidden.found[layer] = self.ops.copy(x, scale)

    def embed(self, plan: Any) -> Tensor:
        """Return the residual stream before the first layer; only for the first stage."""
        weights, ops = self.weights, self.ops
        x = self.ranks.all_reduce(self.look_up(plan))
        if self.embedding_scale != 1.0:
            ops.scale_(x, self.embedding_scale)
        if weights.project_in is not None:
            rows = ops.cast(x, weights.embed.dtype)
            x = ops.cast(ops.linear(rows, weights.project_in, None), torch.float32)
        if weights.positions is not None:
            ops.add_positions_(plan, x, weights.positions)
        if weights.embed_norm is not None:
            normed = self._norm(x, None, weights.embed_norm, weights.embed_norm_bias)
            x = ops.cast(normed, torch.float32)
        return x

    def look_up(self, plan: Any) -> Tensor:
        """Return the batch's rows of this rank's embeddings, fp32, before the all-reduce."""
        return self.ops.embed(plan, self.weights.embed)

    def _norm(
        self,
        x: Tensor,
        delta: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        stream_scale: float | None = None,
    ) -> Tensor:
        """Add `delta` to the stream x in place; return the input of the next branch.

        With `stream_scale` it becomes the stream too, multiplied by that.
        """
        if weight is None:
            if delta is not None:
                self.ops.add_(x, delta)
            return self.ops.cast(x, self.weights.dtype)
        normed = self.ops.norm_(x, delta, weight, bias)
        if stream_scale is not None:
            self.ops.replace_(x, normed, stream_scale)
        return normed

    def _stream_scale(self, i: int, branch: int) -> float | None:
        """Return the factor of the norm before a branch in the stream; None: it is not in it."""
        layer = self.config.layers[i]
        return layer.stream_scales[branch] if layer.norm_order in ("post", "stream") else None

    def _only_branch(
        self,
        plan: Any,
        i: int,
        layer: LayerWeights,
        kv: LayerKV,
        x: Tensor,
        delta: Tensor | None,
        hidden: HiddenStates | None,
    ) -> Tensor:
        """Return the output of a layer with one branch, on all ranks."""
        if self.config.layers[i].mlp is None and self.config.layers[i].moe is None:
            return self._first_branch(plan, i, layer, kv, x, delta, hidden)
        norms = layer.mlp_norm, layer.mlp_norm_bias
        normed = self._norm(x, delta, *norms, self._stream_scale(i, 1))
        self.keep(hidden, i, x)
        return self.ranks.all_reduce(self._mlp(i, layer, normed))

    def _attention(self, plan: Any, i: int, layer: LayerWeights, x: Tensor, kv: LayerKV) -> Tensor:
        """Return this rank's part of the attention's or mixer's output, before the all-reduce."""
        if layer.mixer is None:
            return self._attend(plan, i, layer, x, kv)
        mixed = self.ops.mix(plan, i, x, layer.mixer, self.ranks)
        config = self.config.layers[i]
        mixed = scaled(mixed, config.mixer_out_scale, self.ops)
        if config.attention is None:
            return mixed
        return self.ops.add(self._attend(plan, i, layer, x, kv), mixed)

    def _attend(self, plan: Any, i: int, layer: LayerWeights, x: Tensor, kv: LayerKV) -> Tensor:
        ops, config = self.ops, self.config.layers[i].attention
        assert config is not None
        qkv = ops.linear(x, layer.qkv, layer.qkv_bias)
        gates: Tensor | None = None
        if layer.attn_gate is not None:
            gates = ops.linear(x, layer.attn_gate, None)
        elif config.gate is not None:
            qkv, gates = ops.split_gate(qkv, config.num_heads * config.head_dim)
        if config.clip is not None:
            ops.clamp_(qkv, config.clip)
        norms = layer.head_norms
        by_width = config.head_norms is not None and config.head_norms.over == "width"
        if norms is not None and by_width and self.ranks.size > 1:
            norm_widths_(qkv, *norms, self.config.norm, self.ranks)
            norms = None
        out = ops.attend(plan, i, qkv, kv, norms, layer.sinks, layer.latent)
        if gates is not None:
            out = ops.gate(out, gates, softplus=config.gate is not None and config.gate.softplus)
        if layer.attn_inner_norm is not None:
            out = ops.norm_inside(out, layer.attn_inner_norm, self.config.norm.eps)
        out = ops.linear(out, layer.o, layer.o_bias)
        return scaled(out, config.out_scale, ops)

    def _mlp(self, i: int, layer: LayerWeights, x: Tensor) -> Tensor:
        """Return this rank's part of the MLP's output, before the all-reduce."""
        return mlp(i, layer, x, self.config, self.ops)

    def _mlp_and_experts(
        self, i: int, layer: LayerWeights, norms: ExpertNorms, x: Tensor, normed: Tensor
    ) -> Tensor:
        """Return the sum of the norms of the MLP's and the experts' outputs, on all ranks."""
        ops, reduce = self.ops, self.ranks.all_reduce
        assert layer.experts is not None
        dense = ops.cast(reduce(self._mlp(i, layer, normed)), torch.float32)
        router_input = ops.norm_(x, None, norms.router, None)
        inputs = ops.norm_(x, None, norms.experts, None)
        sparse = reduce(ops.moe(i, inputs, layer.experts, router_input))
        return ops.add(
            ops.norm_(dense, None, norms.dense_out, None),
            ops.norm_(sparse, None, norms.experts_out, None),
        )

    def _add_branch(self, x: Tensor, out: Tensor, weight: Tensor | None) -> Tensor | None:
        """Return a branch's output, on all ranks, for the next norm to add to the stream x.

        With an output norm, add its norm to x now and return None.
        """
        if weight is None:
            return out
        self.ops.add_norm_(x, out, weight)
        return None

    def logits(self, plan: Any, normed: Tensor, hidden: HiddenStates | None = None) -> Tensor:
        """Return the result of `forward`, given the last norm; only for the last stage."""
        return self.softcap_(self.raw_logits(plan, normed, hidden))

    def raw_logits(self, plan: Any, normed: Tensor, hidden: HiddenStates | None = None) -> Tensor:
        """Return the result of `logits` before `softcap_`."""
        weights, rows = self.weights, self._hidden(plan, normed)
        self.keep(hidden, LAST_NORM, rows)
        return self.ops.logits(rows, weights.lm_head, weights.lm_head_bias)

    def _hidden(self, plan: Any, normed: Tensor) -> Tensor:
        """Return the LM head's input for the rows with logits."""
        rows, project_out = self.ops.logits_rows(plan, normed), self.weights.project_out
        return rows if project_out is None else self.ops.linear(rows, project_out, None)

    def softcap_(self, logits: Tensor) -> Tensor:
        """Scale and soft-cap the logits in place if the model does so."""
        cap = self.config.head.softcap
        if self.config.head.scale != 1.0:
            self.ops.scale_(logits, self.config.head.scale)
        return logits if cap is None else self.ops.softcap_(logits, cap)
