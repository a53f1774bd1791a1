"""The transformer decoder: one forward pass for every family, driven by its `ModelConfig`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.engine import torch_ops as ops
from swiftchat.engine.batch import Batch
from swiftchat.engine.kv_cache import KVCache
from swiftchat.engine.rope import rope_table
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


class Decoder:
    """A model ready to run: configuration, weights and the table of rotary angles."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, ctx_size_tokens: int) -> None:
        self.config = config
        self.weights = weights
        table = rope_table(config.rope, config.head_dim, ctx_size_tokens)
        self.rope_table = table.to(weights.embed.device)

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Compute the batch, write its keys and values to the cache, and return the logits.

        fp32 [len(batch.wanted), vocab_size]; only the tokens of `batch.logit_rows` have any.
        """
        weights, eps = self.weights, self.config.norm_eps
        angles = self.rope_table[batch.positions]
        plans = ops.plan_attention(
            batch.spans, cache.block_size, self.config.sliding_window, batch.ids.device
        )
        # The residual stream stays in fp32: single channels of it reach 25,000 in small models,
        # where bf16 counts in steps of 128.
        x = weights.embed[batch.ids].float()
        for layer, kv in zip(weights.layers, cache.layers, strict=True):
            normed = ops.rms_norm(x, layer.attn_norm, eps)
            x += self._attention(normed, layer, kv, batch.slot_mapping, angles, plans)
            normed = ops.rms_norm(x, layer.mlp_norm, eps)
            inner = ops.gated_silu(ops.linear(normed, layer.gate_up, layer.gate_up_bias))
            x += ops.linear(inner, layer.down, layer.down_bias)
        last = x if len(batch.logit_rows) == len(x) else x[batch.logit_rows]
        return ops.linear(ops.rms_norm(last, weights.final_norm, eps), weights.lm_head).float()

    def _attention(self, x: Tensor, layer: LayerWeights, kv: Tensor, slots: Tensor,
                   angles: Tensor, plans: Sequence[ops.AttentionPlan]) -> Tensor:  # fmt: skip
        """Attention of the normed x [n, hidden] over this layer's cache `kv`, out-projected."""
        config = self.config
        heads, kv_heads = config.num_heads, config.num_kv_heads
        qkv = ops.linear(x, layer.qkv, layer.qkv_bias).view(len(x), -1, config.head_dim)
        ops.rotate_(qkv[:, : heads + kv_heads], angles)
        ops.store(kv, slots, qkv[:, heads:])
        out = ops.attention(qkv[:, :heads], kv, plans, config.head_dim**-0.5)
        return ops.linear(out.reshape(len(x), -1), layer.o, layer.o_bias)


def resident_bytes(weights: DecoderWeights) -> int:
    """Bytes of all weights, a tensor that serves twice counted once."""
    tensors = [weights.embed, weights.final_norm, weights.lm_head]
    for layer in weights.layers:
        tensors += [t for t in vars(layer).values() if isinstance(t, torch.Tensor)]
    return sum({t.data_ptr(): t.nbytes for t in tensors}.values())
