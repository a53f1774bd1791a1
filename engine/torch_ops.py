"""The decoder's operations as torch calls: for the CPU, and for GPUs our kernels do not cover.

They are also the reference for the kernels. Activations are packed: one row a token. Products
accumulate in fp32 whatever the dtype.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.batch import Batch, Span
from swiftchat.engine.kv_cache import KVCache
from swiftchat.engine.rope import cos_sin_table
from swiftchat.weights.config import ModelConfig


class TorchOps:
    """The operations of one model on one device, as `decoder.Ops` describes them."""

    heads_first = False

    def __init__(self, config: ModelConfig, ctx_size_tokens: int, device: torch.device) -> None:
        self._config = config
        self._device = device
        cos, sin = cos_sin_table(config.rope, config.head_dim, ctx_size_tokens, device).chunk(
            2, dim=1
        )
        # As `rotate_` wants them: both halves of a head, the first of the sines negated.
        self._angles = torch.stack([torch.cat([cos, cos], 1), torch.cat([-sin, sin], 1)], 1)

    def plan(self, batch: Batch, cache: KVCache) -> "TorchPlan":
        def tensor(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=self._device)

        attention = plan_attention(
            batch.spans, cache.block_size, self._config.sliding_window, self._device
        )
        return TorchPlan(
            ids=tensor(batch.ids), slots=tensor(batch.slot_mapping),
            angles=self._angles[tensor(batch.positions)],
            logit_rows=tensor(batch.logit_rows), attention=attention,
        )  # fmt: skip

    def embed(self, plan: "TorchPlan", table: Tensor) -> Tensor:
        return table[plan.ids].float()

    def add_norm_(self, x: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        if delta is not None:
            x += delta
        return rms_norm(x, weight, self._config.norm_eps)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return linear(x, weight, bias)

    def attend(self, plan: "TorchPlan", qkv: Tensor, kv: Tensor) -> Tensor:
        config = self._config
        heads = qkv.view(len(qkv), -1, config.head_dim)
        rotate_(heads[:, : config.num_heads + config.num_kv_heads], plan.angles)
        store(kv, plan.slots, heads[:, config.num_heads :])
        out = attention(heads[:, : config.num_heads], kv, plan.attention, config.head_dim**-0.5)
        return out.reshape(len(qkv), -1)

    def gate(self, gate_up: Tensor) -> Tensor:
        return gated_silu(gate_up)

    def last_rows(self, plan: "TorchPlan", x: Tensor) -> Tensor:
        return x if len(plan.logit_rows) == len(x) else x[plan.logit_rows]

    def logits(self, x: Tensor, lm_head: Tensor) -> Tensor:
        return linear(x, lm_head).float()

    def copy_blocks(self, cache: KVCache, copies: Sequence[tuple[int, int]]) -> None:
        for source, destination in copies:
            if source != destination:
                cache.all[:, destination] = cache.all[:, source]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each fp32 row of x [n, hidden] to root mean square 1, then by weight [hidden].

    Zhang and Sennrich, 2019 (arXiv:1910.07467), in fp32; the result has the weight's dtype.
    """
    return F.rms_norm(x, weight.shape, eps=eps).mul_(weight).to(weight.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [n, in] times weight [out, in] transposed, plus bias [out]: [n, out].

    One row goes through torch's matrix × vector product: on the CPU its general product takes
    1.4 times as long for bf16 weights.
    """
    if len(x) != 1:
        return F.linear(x, weight, bias)
    product = torch.mv(weight, x[0]) if bias is None else torch.addmv(bias, weight, x[0])
    return product.unsqueeze(0)


def gated_silu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for gate_up [n, 2 * intermediate], the gate first: [n, intermediate].

    SwiGLU without its products (Shazeer, 2020, arXiv:2002.05202).
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def rotate_(x: Tensor, angles: Tensor) -> None:
    """Rotary embedding, half-split layout, of x [n, heads, head_dim], in place, in fp32.

    `angles` [n, 2, head_dim]: cosines for both halves of a head, then sines, those of the first
    half negated.
    """
    cos, sin = angles.unsqueeze(2).unbind(1)
    half = x.shape[-1] // 2
    wide = x.float()
    swapped = torch.cat((wide[..., half:], wide[..., :half]), -1)
    x.copy_((wide * cos).addcmul_(swapped, sin))


def store(cache: Tensor, slots: Tensor, new: Tensor) -> None:
    """Write new [n, 2 * kv_heads, head_dim] into the slots [n] of one layer's cache, in place."""
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, new)


@dataclass(frozen=True)
class TorchPlan:
    """A batch on the device: int64 `ids` and `slots` [n], `logit_rows`, and `angles` [n, 2, d]."""

    ids: Tensor
    slots: Tensor
    angles: Tensor
    logit_rows: Tensor
    attention: list["AttentionPlan"]


@dataclass(frozen=True)
class AttentionPlan:
    """How one row reads its context; the same for every layer, so made once a forward pass.

    `blocks` is None when the context lies in one stretch of the cache, beginning at slot
    `first`: then no copy is needed. `mask` is bool [num_tokens, context_len], None when
    everything is seen or `is_causal` says it all.
    """

    rows: slice
    first: int
    context_len: int
    blocks: Tensor | None
    mask: Tensor | None
    is_causal: bool


def plan_attention(spans: Sequence[Span], block_size: int, window: int | None,
                   device: torch.device) -> list[AttentionPlan]:  # fmt: skip
    """Plan causal attention of each span over its blocks, over the last `window` tokens if set."""
    plans = []
    for span in spans:
        n, length = span.num_tokens, span.context_len
        used = span.block_table[: -(-length // block_size)]
        contiguous = used[-1] - used[0] == len(used) - 1 and used == sorted(used)
        windowed = window is not None and length > window
        mask = None
        if windowed or (n > 1 and n != length):
            keys = torch.arange(length, device=device)
            queries = torch.arange(length - n, length, device=device).unsqueeze(1)
            mask = keys <= queries
            if window is not None:
                mask &= keys > queries - window
        plans.append(
            AttentionPlan(
                slice(span.start, span.start + n),
                used[0] * block_size,
                length,
                None if contiguous else torch.tensor(used, device=device),
                mask,
                is_causal=mask is None and n > 1,
            )
        )
    return plans


def attention(q: Tensor, cache: Tensor, plans: Sequence[AttentionPlan], scale: float) -> Tensor:
    """Grouped-query attention of q [n, heads, head_dim] over one layer's cache: same shape.

    `cache` is [num_blocks, block_size, 2 * kv_heads, head_dim], the keys' heads before the
    values', and already holds the rows' own tokens. Query head h reads kv head
    `h // (heads / kv_heads)`.
    """
    kv_heads = cache.shape[2] // 2
    outputs = []
    for plan in plans:
        keys, values = _context(cache, plan).tensor_split(2, dim=1)
        out = F.scaled_dot_product_attention(
            q[plan.rows].transpose(0, 1).unsqueeze(0),
            keys,
            values,
            attn_mask=plan.mask,
            is_causal=plan.is_causal,
            scale=scale,
            enable_gqa=q.shape[1] != kv_heads,
        )
        outputs.append(out[0].transpose(0, 1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _context(cache: Tensor, plan: AttentionPlan) -> Tensor:
    """The context's keys and values as [1, 2 * kv_heads, context_len, head_dim]."""
    if plan.blocks is None:
        flat = cache.view(-1, *cache.shape[2:])[plan.first : plan.first + plan.context_len]
    else:
        flat = cache.index_select(0, plan.blocks).view(-1, *cache.shape[2:])[: plan.context_len]
    return flat.transpose(0, 1).unsqueeze(0)
