"""The attention of a layer: what comes before, in and after the scores."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.model.kv_cache import LayerKV
from swiftchat.engine.model.mlp import scaled
from swiftchat.engine.model.norms import norm_widths_
from swiftchat.engine.model.ops import AttentionInputs, Ops
from swiftchat.engine.model.weights import LayerWeights
from swiftchat.weights.architectures.parts.attention import Attention
from swiftchat.weights.architectures.parts.layers import Norm


@dataclass(frozen=True)
class AttentionPart:
    """The attention of layer `number`, or a rank's part of it."""

    config: Attention
    norm: Norm
    weights: LayerWeights
    number: int
    ops: Ops
    ranks: Communicator

    def __call__(self, plan: Any, x: Tensor, kv: LayerKV) -> Tensor:
        """Return the output for the normed input x, before the all-reduce."""
        ops, weights = self.ops, self.weights
        qkv, gates, inputs = self._inputs(plan, x, kv)
        out = ops.attend(plan, qkv, inputs)
        if gates is not None:
            gate = self.config.gate
            out = ops.gate(out, gates, softplus=gate is not None and gate.softplus)
        if weights.attn_inner_norm is not None:
            out = ops.norm_inside(out, weights.attn_inner_norm, self.norm.eps)
        return scaled(ops.linear(out, weights.o, weights.o_bias), self.config.out_scale, ops)

    def store(self, plan: Any, x: Tensor, kv: LayerKV) -> None:
        """Write keys and values for the normed input x to the cache; attend to nothing."""
        qkv, _, inputs = self._inputs(plan, x, kv)
        self.ops.store(plan, qkv, inputs)

    def _inputs(
        self, plan: Any, x: Tensor, kv: LayerKV
    ) -> tuple[Tensor, Tensor | None, AttentionInputs]:
        """Return q k v, the scores of the output's gate, and what else the attention reads."""
        qkv, gates = self._projected(plan, x)
        if self.config.clip is not None:
            self.ops.clamp_(qkv, self.config.clip)
        weights, norms, kind = self.weights, self.weights.head_norms, self.config.head_norms
        if norms is not None and kind is not None and kind.over == "width" and self.ranks.size > 1:
            norm_widths_(qkv, *norms, self.norm, self.ranks)
            norms = None
        return qkv, gates, AttentionInputs(self.number, kv, norms, weights.sinks, weights.latent)

    def _projected(self, plan: Any, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return queries, keys and values, and the scores of the output's gate if it has one."""
        ops, weights = self.ops, self.weights
        qkv = ops.linear(x, weights.qkv, weights.qkv_bias)
        if (token := weights.token_input) is not None:
            embedded = ops.norm_(ops.embed(plan, token.embed), None, token.norm, None)
            qkv = ops.add(qkv, ops.linear(embedded, token.qkv, None))
        if weights.attn_gate is not None:
            return qkv, ops.linear(x, weights.attn_gate, None)
        if self.config.gate is not None:
            return ops.split_gate(qkv, self.config.num_heads * self.config.head_dim)
        return qkv, None
