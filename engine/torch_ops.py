"""The decoder's operations as torch calls: for the CPU, and for GPUs our kernels do not cover.

They are also the reference for the kernels. Activations are packed: one row a token. Products
accumulate in fp32 whatever the dtype.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.batch import Batch, Span
from swiftchat.engine.kv_cache import KVCache, LayerKV
from swiftchat.engine.mixture import Experts, mixture
from swiftchat.engine.norms import layer_norm, norm_heads_, rms_norm
from swiftchat.engine.quantised import Table, Weight, for_torch
from swiftchat.engine.quantised_kv import decoded
from swiftchat.engine.rope import cos_sin_table
from swiftchat.weights.config import ModelConfig, RopeConfig
from swiftchat.weights.tensor_parallel import Share

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "silu": F.silu,
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": partial(F.gelu, approximate="tanh"),
        # An approximation of GELU too (Hendrycks and Gimpel, 2016, arXiv:1606.08415).
        "gelu_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    }
)

_MOST_SCORES = 2**25  # that are held at once, in fp32, where torch's attention cannot be had


class TorchOps:
    """The operations of one model on one device, as `decoder.Ops` describes them.

    With `share` those of one rank, and `config` is `share.local`.
    """

    heads_first = False

    def __init__(self, config: ModelConfig, ctx_size_tokens: int, device: torch.device,
                 share: Share | None = None) -> None:  # fmt: skip
        share = share or Share(config)
        self._config = config
        self._device = device
        self._norm_offset = float(config.norm_unit_offset)
        self._eps = torch.tensor(config.norm_eps, device=device)
        self._activation = ACTIVATIONS[config.activation]
        self._angles = [
            _signed_angles(rope, config.head_dim, ctx_size_tokens, device)
            for rope in (config.rope, config.local_rope)
            if rope is not None
        ]
        self._slopes: Tensor | None = None
        if config.alibi:
            self._slopes = alibi_slopes(share.config)[slice(*share.heads)].to(device)
        self._first_id = share.vocabulary[0]

    def plan(self, batch: Batch, cache: KVCache) -> "TorchPlan":
        def tensor(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=self._device)

        def reading(window: int | None) -> list[AttentionPlan]:
            return plan_attention(
                batch.spans, cache.block_size, window, self._device, self._slopes
            )  # fmt: skip

        config, positions = self._config, tensor(batch.positions)
        attention = reading(config.sliding_window)
        if config.rope is not None and config.rope.two_dimensional:
            first, second = zip(*batch.places(), strict=True)
            angles = [_halves(t[tensor(first)], t[tensor(second)]) for t in self._angles]
        else:
            angles = [table[positions] for table in self._angles]
        return TorchPlan(
            ids=tensor(batch.ids), slots=tensor(batch.slot_mapping), positions=positions,
            angles=angles,
            logit_rows=tensor(batch.logit_rows), attention=attention,
            full_attention=reading(None) if config.full_layers else attention,
        )  # fmt: skip

    def embed(self, plan: "TorchPlan", table: Table) -> Tensor:
        def rows(ids: Tensor) -> Tensor:
            if isinstance(table, Tensor):
                return table[ids].float()
            return for_torch(table).rows(ids).float()

        if table.shape[0] == self._config.vocab_size:
            return rows(plan.ids)
        # Of the other ranks' ids this one has nothing to add to the sum.
        own = plan.ids - self._first_id
        others = (own < 0) | (own >= table.shape[0])
        return rows(own.masked_fill_(others, 0)).masked_fill_(others.unsqueeze(1), 0.0)

    def norm_(self, x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
        if delta is not None:
            x += delta
        if self._config.norm == "layer":
            return layer_norm(x, weight, bias, self._config.norm_eps).to(weight.dtype)
        return rms_norm(x, weight, self._eps, self._norm_offset).type(weight.dtype)

    def add_normed_(self, x: Tensor, delta: Tensor, weight: Tensor) -> None:
        x += rms_norm(delta.float(), weight, self._eps, self._norm_offset)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        return linear(x, weight, bias)

    def attend(self, plan: "TorchPlan", layer: int, qkv: Tensor, kv: LayerKV,
               norms: tuple[Tensor, Tensor] | None, sinks: Tensor | None) -> Tensor:  # fmt: skip
        config = self._config
        if norms is not None:
            norm_heads_(qkv, *norms, config)
        heads = qkv.view(len(qkv), -1, config.head_dim)
        full = layer in config.full_layers
        if plan.angles and layer not in config.unrotated_layers:
            # Of two tables, the second is for the layers that have a window.
            angles = plan.angles[0 if config.window(layer) is None else -1]
            rotate_(heads[:, : config.num_heads + config.num_kv_heads], angles)
        store(kv, plan.slots, heads[:, config.num_heads :])
        return attention(
            heads[:, : config.num_heads], kv, plan.full_attention if full else plan.attention,
            config.attention_scale, config.attention_softcap, sinks,
        )  # fmt: skip

    def gate(self, gate_up: Tensor) -> Tensor:
        config = self._config
        if not config.gated:
            return self._activation(gate_up)
        if config.interleaved_gate:
            gate, up = gate_up[:, 0::2], gate_up[:, 1::2]
        else:
            gate, up = gate_up.chunk(2, dim=-1)
        if config.gate_limit is not None:
            gate, up = clamped(gate, up, config.gate_limit)
        return self._activation(gate).mul_(up)

    def mixture(self, layer: int, x: Tensor, experts: Experts) -> Tensor:
        return mixture(x, experts, self._config, self)

    def last_rows(self, plan: "TorchPlan", x: Tensor) -> Tensor:
        return x if len(plan.logit_rows) == len(x) else x[plan.logit_rows]

    def logits(self, x: Tensor, lm_head: Weight) -> Tensor:
        return linear(x, lm_head).float()

    def copy_blocks(self, cache: KVCache, copies: Sequence[tuple[int, int]]) -> None:
        for source, destination in copies:
            if source != destination:
                for tensor in cache.tensors:
                    tensor[:, destination] = tensor[:, source]


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """x [n, in] times weight [out, in] transposed, plus bias [out]: [n, out].

    One row goes through torch's matrix × vector product: on the CPU its general product takes
    1.4 times as long for bf16 weights. For transposed ones it is the faster of the two.
    """
    if not isinstance(weight, Tensor):
        product = for_torch(weight).product(x)
        return product if bias is None else product + bias
    if len(x) != 1 or not weight.is_contiguous():
        return F.linear(x, weight, bias)
    product = torch.mv(weight, x[0]) if bias is None else torch.addmv(bias, weight, x[0])
    return product.unsqueeze(0)


def clamped(gate: Tensor, up: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """The gate at most `limit`; up within it on both sides, and one more.

    As the SwiGLU of OpenAI's gpt-oss reference code has it.
    """
    return gate.clamp(max=limit), up.clamp(-limit, limit).add_(1)


def _signed_angles(
    rope: RopeConfig, head_dim: int, num_positions: int, device: torch.device
) -> Tensor:
    """The table as `rotate_` wants it: both halves of a head, the first of the sines negated."""
    cos, sin = cos_sin_table(rope, head_dim, num_positions, device).chunk(2, dim=1)
    return torch.stack([torch.cat([cos, cos], 1), torch.cat([-sin, sin], 1)], 1)


def _halves(first: Tensor, second: Tensor) -> Tensor:
    """Of two [n, 2, head_dim] as `rotate_` takes them, each for its half of the pairs."""
    ours, theirs = (angles.view(len(angles), 2, 2, 2, -1) for angles in (first, second))
    return torch.cat([ours[..., :1, :], theirs[..., 1:, :]], -2).view(first.shape)


def rotate_(x: Tensor, angles: Tensor) -> None:
    """Rotary embedding, half-split layout, of x [n, heads, head_dim], in place, in fp32.

    `angles` [n, 2, head_dim]: cosines for both halves of a head, then sines, those of the first
    half negated.
    """
    cos, sin = angles.unsqueeze(2).unbind(1)
    wide = x.float()
    swapped = wide.roll(x.shape[-1] // 2, -1)
    x.copy_(wide.mul_(cos).addcmul_(swapped, sin))


def store(cache: LayerKV, slots: Tensor, new: Tensor) -> None:
    """Write new [n, 2 * kv_heads, head_dim] into the slots [n] of one layer's cache, in place."""
    if not isinstance(cache, Tensor):
        cache.store(slots, new)
        return
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, new)


@dataclass(frozen=True)
class TorchPlan:
    """A batch on the device: int64 `ids`, `positions` and `slots` [n], and `logit_rows`.

    `angles` [n, 2, d] for each table there is; `full_attention` is for the layers without a
    window.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    angles: list[Tensor]
    logit_rows: Tensor
    attention: list["AttentionPlan"]
    full_attention: list["AttentionPlan"]


@dataclass(frozen=True)
class AttentionPlan:
    """How one row reads its context; the same for every layer, so made once a forward pass.

    `blocks` is None when the context lies in one stretch of the cache, beginning at slot
    `first`: then no copy is needed. `mask` is bool [num_tokens, context_len], None when
    everything is seen or `is_causal` says it all; with ALiBi it is fp32 [heads, num_tokens,
    context_len] and to be added.
    """

    rows: slice
    first: int
    context_len: int
    blocks: Tensor | None
    mask: Tensor | None
    is_causal: bool


def plan_attention(spans: Sequence[Span], block_size: int, window: int | None,
                   device: torch.device, slopes: Tensor | None = None,
                   ) -> list[AttentionPlan]:  # fmt: skip
    """Plan causal attention of each span over its blocks, over the last `window` tokens if set.

    `slopes` [heads] are ALiBi's.
    """
    plans = []
    for span in spans:
        n, length = span.num_tokens, span.context_len
        used = span.block_table[: -(-length // block_size)]
        contiguous = used[-1] - used[0] == len(used) - 1 and used == sorted(used)
        windowed = window is not None and length > window
        both_ways = span.both_ways.length
        mask = None
        if slopes is not None or windowed or (n > 1 and (n != length or both_ways > 1)):
            keys = torch.arange(length, device=device)
            queries = torch.arange(length - n, length, device=device).unsqueeze(1)
            mask = (keys <= queries) | (keys < both_ways)
            if window is not None:
                mask &= keys > queries - window
            if slopes is not None:
                # Against the query's own place: near it the numbers are small and so exact.
                biases = slopes.view(-1, 1, 1) * (keys - queries)
                mask = biases.masked_fill_(~mask, float("-inf"))
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


def alibi_slopes(config: ModelConfig) -> Tensor:
    """How fast each head's scores fall with distance, fp32 [heads]: Press et al., 2021
    (arXiv:2108.12409), times `alibi_scale`.

    A geometric sequence for a power of two; other numbers take every second slope of the next
    power in addition.
    """
    num_heads = config.num_heads
    power = 2 ** (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * (num_heads - power), 2)]
    return torch.tensor(slopes + between) * config.alibi_scale


def attention(q: Tensor, cache: LayerKV, plans: Sequence[AttentionPlan], scale: float,
              softcap: float | None = None, sinks: Tensor | None = None) -> Tensor:  # fmt: skip
    """Grouped-query attention of q [n, heads, head_dim] over the cache: [n, heads * head_dim].

    `cache` is [num_blocks, block_size, 2 * kv_heads, head_dim], the keys' heads before the
    values', and already holds the rows' own tokens. Of a quantised one, what a row reads is
    decoded for the time of its attention. Query head h reads kv head `h // (heads / kv_heads)`.
    Scores x become softcap·tanh(x / softcap), if set. `sinks` [heads] are one more score of each
    head, whose value is 0 (Xiao et al., 2023, arXiv:2309.17453).
    """
    outputs = []
    for plan in plans:
        keys, values = _context(cache, plan, q.dtype).chunk(2, 1)
        rows = (q if len(plans) == 1 else q[plan.rows]).unsqueeze(0).transpose(1, 2)
        if softcap is not None or sinks is not None:
            out = _by_hand(rows, keys, values, plan, scale, softcap, sinks)
        else:
            mask = plan.mask
            out = F.scaled_dot_product_attention(
                rows,
                keys,
                values,
                attn_mask=mask.to(q.dtype)
                if mask is not None and mask.is_floating_point()
                else mask,
                is_causal=plan.is_causal,
                scale=scale,
                enable_gqa=q.shape[1] != keys.shape[1],
            )
        outputs.append(out.transpose(1, 2).reshape(rows.shape[2], -1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _by_hand(q: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, scale: float,
             softcap: float | None, sinks: Tensor | None) -> Tensor:  # fmt: skip
    """What torch's attention does, with soft-capped scores and sinks: [1, heads, n, head_dim].

    Some queries at a time, so that their scores stay small.
    """
    n, kv_heads = q.shape[2], keys.shape[1]
    grouped = q.view(1, kv_heads, -1, *q.shape[2:])
    mask = plan.mask
    if plan.is_causal:
        mask = torch.ones(n, plan.context_len, dtype=torch.bool, device=q.device).tril_()
    step = max(1, _MOST_SCORES // (q.shape[1] * plan.context_len))
    outputs = []
    for first in range(0, n, step):
        rows = slice(first, first + step)
        scores = (grouped[..., rows, :] @ keys.unsqueeze(2).transpose(-1, -2)).float().mul_(scale)
        if softcap is not None:
            scores = scores.div_(softcap).tanh_().mul_(softcap)
        if mask is not None:
            scores.masked_fill_(~mask[rows], float("-inf"))
        if sinks is not None:
            sink = sinks.float().view(1, kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
            shares = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        else:
            shares = scores.softmax(-1)
        outputs.append(shares.to(values.dtype) @ values.unsqueeze(2))
    return torch.cat(outputs, -2).view(q.shape)


def _context(cache: LayerKV, plan: AttentionPlan, dtype: torch.dtype) -> Tensor:
    """The context's keys and values as [1, 2 * kv_heads, context_len, head_dim]."""
    if isinstance(cache, Tensor):
        flat = _of_tokens(cache, plan)
    else:
        codes, factors = _of_tokens(cache.codes, plan), _of_tokens(cache.factors, plan)
        flat = decoded(cache.form, codes, factors, dtype)
    return flat.transpose(0, 1).unsqueeze(0)


def _of_tokens(stored: Tensor, plan: AttentionPlan) -> Tensor:
    """What of `stored` [num_blocks, block_size, ...] is the context's: [context_len, ...]."""
    if plan.blocks is None:
        return stored.view(-1, *stored.shape[2:])[plan.first : plan.first + plan.context_len]
    return stored.index_select(0, plan.blocks).view(-1, *stored.shape[2:])[: plan.context_len]
