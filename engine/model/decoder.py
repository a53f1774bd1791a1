"""The transformer decoder: one forward pass for every architecture, driven by `ModelConfig`."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from swiftchat.engine.comm.communicator import Communicator, SingleRank
from swiftchat.engine.comm.pipeline import Pipeline, SingleStage
from swiftchat.engine.model import altup
from swiftchat.engine.model.hidden_states import LAST_NORM, HeadLayer, HiddenStates
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.layer import Layer, norm_stream_
from swiftchat.engine.model.ops import Ops
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.engine.schedule.batch import Batch
from swiftchat.weights.architectures.parts.model import ModelConfig


class Decoder:
    """A model ready to run: configuration, weights, and the operations of its device.

    With several `ranks` or `stages`, configuration and weights are those of this rank's shard. A
    prediction head is one more layer, `head`: every token that is computed is stored in its cache,
    too, so that blocks of the cache are whole for every sequence that shares them.
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
        self.head: HeadLayer | None = None
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
        plan = self.ops.plan(batch, cache)
        return self.forward_plan(plan, cache, hidden, batch)

    def forward_plan(
        self,
        plan: Any,
        cache: KVCache,
        hidden: HiddenStates | None = None,
        batch: Batch | None = None,
    ) -> Tensor | None:
        """As `forward`, for a batch that is on the device; a head reads the packed one if given."""
        kept = self.kept(hidden)
        normed = self._forward_stages(plan, cache, kept)
        logits = None if normed is None else self.logits(plan, normed, kept)
        self.store_for_head(plan if batch is None else batch, kept)
        return logits

    def forward_hidden(
        self, batch: Batch, cache: KVCache, hidden: HiddenStates | None = None
    ) -> Tensor | None:
        """As `forward`, but return the hidden states that the logits would be computed from.

        [len(batch.logits_indices), `hidden_width`], after the last norm, on all ranks of the last
        stage.
        """
        plan, kept = self.ops.plan(batch, cache), self.kept(hidden)
        normed = self._forward_stages(plan, cache, kept)
        self.store_for_head(batch, kept)
        return None if normed is None else self._hidden(plan, normed)

    def kept(self, hidden: HiddenStates | None) -> HiddenStates | None:
        """Return what receives the hidden states of a batch: `hidden`, or what the head reads."""
        return hidden if self.head is None else HiddenStates(self.head.hidden_layers)

    def store_for_head(self, batch: Batch | Any, hidden: HiddenStates | None) -> None:
        """Add the tokens of a computed batch to the cache of the head, if there is one."""
        if self.head is not None:
            assert hidden is not None
            self.head.store(batch, hidden)

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
        for i, (layer, kv) in enumerate(zip(self.layers(), cache.layers, strict=True)):
            if streams is not None:
                streams = layer.update_streams(plan, kv, streams, own[i])
                continue
            delta = layer.first_branch(plan, x, delta, kv, partial(self.keep, hidden, i, x))
            if layer.config.has_single_branch or layer.config.is_parallel:
                continue
            delta, shortcut = layer.second_branch(x, delta, shortcut)
            layer.finish(x, own[i] if own else None)
        if streams is not None and weights.streams is not None:
            x.copy_(altup.collapse(streams, weights.streams))
        normed = self._last_norm(x, delta)
        self.keep(hidden, len(weights.layers), x)
        return normed

    def layers(self) -> Iterator[Layer]:
        """Yield the layers of this stage."""
        ranks, dtype = self.ranks, self.weights.dtype
        for number, weights in enumerate(self.weights.layers):
            yield Layer(self.config, number, weights, self.ops, ranks, dtype)

    def _last_norm(self, x: Tensor, delta: Tensor | None) -> Tensor:
        weights, last = self.weights, self.config.layers[-1]
        norm = weights.final_norm, weights.final_norm_bias
        scale = last.stream_scales[1] if last.norm_order in ("post", "stream") else None
        return norm_stream_(self.ops, x, delta, norm, weights.dtype, scale)

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
            norm = weights.embed_norm, weights.embed_norm_bias
            x = ops.cast(norm_stream_(ops, x, None, norm, weights.dtype), torch.float32)
        return x

    def look_up(self, plan: Any) -> Tensor:
        """Return the batch's rows of this rank's embeddings, fp32, before the all-reduce."""
        return self.ops.embed(plan, self.weights.embed)

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
