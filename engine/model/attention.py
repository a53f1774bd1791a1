"""Attention over the cache as torch calls."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.model.kv_cache import KVCache, LayerKV
from swiftchat.engine.model.quantized_kv import decoded
from swiftchat.engine.schedule.batch import Span
from swiftchat.weights.architectures.config import ModelConfig

_MOST_SCORES = 2**25  # that are held at once, in fp32, where torch's attention cannot be had


@dataclass(frozen=True)
class AttentionPlan:
    """How one row reads its context; the same for every layer, so made once a forward pass.

    `blocks` is None when the context lies in one stretch of the cache, beginning at slot
    `first`: then no copy is needed, and `contexts` are each layer's keys and values, views
    [1, kv_heads, context_len, head_dim], unless they are quantized. `mask` is bool [num_tokens,
    context_len], None when everything is seen or `is_causal` says it all; with ALiBi it is fp32
    [heads, num_tokens, context_len] and to be added.
    """

    rows: slice
    first: int
    context_len: int
    blocks: Tensor | None
    mask: Tensor | None
    is_causal: bool
    contexts: Sequence[tuple[Tensor, Tensor]] | None


def plan_attention(
    spans: Sequence[Span],
    cache: KVCache,
    window: int | None,
    device: torch.device,
    slopes: Tensor | None = None,
) -> list[AttentionPlan]:
    """Plan causal attention of each span over its blocks, over the last `window` tokens if set.

    `slopes` [heads] are ALiBi's.
    """
    plans = []
    block_size = cache.block_size
    for span in spans:
        n, length = span.num_tokens, span.context_len
        used = span.block_table[: -(-length // block_size)]
        contiguous = used[-1] - used[0] == len(used) - 1 and used == sorted(used)
        windowed = window is not None and length > window
        bidirectional_prefix = span.bidirectional_prefix.length
        mask = None
        if slopes is not None or windowed or (n > 1 and (n != length or bidirectional_prefix > 1)):
            keys = torch.arange(length, device=device)
            queries = torch.arange(length - n, length, device=device).unsqueeze(1)
            mask = (keys <= queries) | (keys < bidirectional_prefix)
            if window is not None:
                mask &= keys > queries - window
            if slopes is not None:
                # Against the query's own place: near it the numbers are small and so exact.
                biases = slopes.view(-1, 1, 1) * (keys - queries)
                mask = biases.masked_fill_(~mask, float("-inf"))
        first = used[0] * block_size
        at_once = contiguous and not cache.is_quantized
        plans.append(
            AttentionPlan(
                slice(span.start, span.start + n),
                first,
                length,
                None if contiguous else torch.tensor(used, device=device),
                mask,
                is_causal=mask is None and n > 1,
                contexts=_contexts(cache, first, length) if at_once else None,
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


def attention(
    q: Tensor,
    layer: int,
    cache: LayerKV,
    plans: Sequence[AttentionPlan],
    scale: float,
    grouped: bool,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Grouped-query attention of q [n, heads, head_dim] over the cache: [n, heads * head_dim].

    `cache`, the layer's, is [num_blocks, block_size, 2 * kv_heads, head_dim], the keys' heads
    before the values', and already holds the rows' own tokens. Of a quantized one, what a row reads
    is decoded for the time of its attention. `grouped`: there are fewer kv heads than heads, and
    query head h reads kv head `h // (heads / kv_heads)`.
    Scores x become softcap·tanh(x / softcap), if set. `sinks` [heads] are one more score of each
    head, whose value is 0 (Xiao et al., 2023, arXiv:2309.17453).
    """
    outputs = []
    for plan in plans:
        if plan.contexts is not None:
            keys, values = plan.contexts[layer]
        else:
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
                enable_gqa=grouped,
            )
        outputs.append(out.transpose(1, 2).reshape(rows.shape[2], -1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _by_hand(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: AttentionPlan,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
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


def _contexts(cache: KVCache, first: int, length: int) -> Sequence[tuple[Tensor, Tensor]]:
    stored = cache.stretch(first, length).transpose(1, 2).unsqueeze(1)
    keys, values = stored.chunk(2, 2)
    return list(zip(keys.unbind(), values.unbind(), strict=True))


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
