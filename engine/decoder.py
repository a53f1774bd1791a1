"""The transformer decoder: one forward pass for every family, driven by its `ModelConfig`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from swiftchat.engine.batch import Batch
from swiftchat.engine.kv_cache import KVCache
from swiftchat.weights.config import ModelConfig


@dataclass(frozen=True)
class LayerWeights:
    """One layer's tensors; matrices are [out, in].

    `qkv` stacks the query, key and value rows, `gate_up` the gate and up rows.
    """

    attn_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True)
class DecoderWeights:
    """`embed` and `lm_head` are [vocab_size, hidden_size]; the same tensor when tied."""

    embed: Tensor
    layers: Sequence[LayerWeights]
    final_norm: Tensor
    lm_head: Tensor


class Ops(Protocol):
    """The operations of a layer, for one model on one device.

    `plan` brings a batch to the device; what it returns is handed to those that need it.
    The residual stream x is fp32 [n, hidden]; everything else has the weights' dtype.
    """

    heads_first: bool  # how the cache is laid out

    def plan(self, batch: Batch, cache: KVCache) -> Any: ...
    def embed(self, plan: Any, table: Tensor) -> Tensor:
        """Rows of the table for the batch's ids: the residual stream."""

    def add_norm_(self, x: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        """Add a layer's output to the stream in place; return the stream's RMSNorm."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor: ...
    def attend(self, plan: Any, qkv: Tensor, kv: Tensor) -> Tensor:
        """Rotate, store in this layer's cache, attend; [n, heads * head_dim]. Destroys qkv."""

    def gate(self, gate_up: Tensor) -> Tensor:
        """activation(gate) * up of [n, 2 * intermediate], the gate first."""

    def last_rows(self, plan: Any, x: Tensor) -> Tensor:
        """The rows whose logits are wanted."""

    def logits(self, x: Tensor, lm_head: Tensor) -> Tensor:
        """fp32 [n, vocab_size]."""

    def copy_blocks(self, cache: KVCache, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (from, to) of all layers."""


class Decoder:
    """A model ready to run: configuration, weights, and the operations of its device."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, ops: Ops) -> None:
        self.config = config
        self.weights = weights
        self.ops = ops

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Compute the batch, write its keys and values to the cache, and return the logits.

        fp32 [len(batch.wanted), vocab_size]; only the tokens of `batch.logit_rows` have any.
        """
        return self.run(self.ops.plan(batch, cache), cache)

    def run(self, plan: Any, cache: KVCache) -> Tensor:
        """`forward` for a batch that is on the device already."""
        weights, ops = self.weights, self.ops
        # The residual stream stays in fp32: single channels of it reach 25,000 in small models,
        # where bf16 counts in steps of 128.
        x = ops.embed(plan, weights.embed)
        delta = None
        for layer, kv in zip(weights.layers, cache.layers, strict=True):
            normed = ops.add_norm_(x, delta, layer.attn_norm)
            qkv = ops.linear(normed, layer.qkv, layer.qkv_bias)
            delta = ops.linear(ops.attend(plan, qkv, kv), layer.o, layer.o_bias)
            normed = ops.add_norm_(x, delta, layer.mlp_norm)
            inner = ops.gate(ops.linear(normed, layer.gate_up, layer.gate_up_bias))
            delta = ops.linear(inner, layer.down, layer.down_bias)
        normed = ops.add_norm_(x, delta, weights.final_norm)
        return ops.logits(ops.last_rows(plan, normed), weights.lm_head)


def resident_bytes(weights: DecoderWeights) -> int:
    """Bytes of all weights, a tensor that serves twice counted once."""
    tensors = [weights.embed, weights.final_norm, weights.lm_head]
    for layer in weights.layers:
        tensors += [t for t in vars(layer).values() if isinstance(t, torch.Tensor)]
    return sum({t.data_ptr(): t.nbytes for t in tensors}.values())
