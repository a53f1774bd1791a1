"""Attention over the KV cache as torch calls."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.half_gemm import gemm_dtype
from swiftchat.engine.model.kv_cache import KVCache, LayerKV
from swiftchat.engine.schedule.batch import Span
from swiftchat.weights.architectures.config import ModelConfig

_MAX_SCORES = 2**25  # fp32 scores in memory at a time, where torch's attention cannot be used


@dataclass(frozen=True)
class AttentionPlan:
    """How one row reads its context; the same for every layer, so made once a forward pass.

    `blocks` is None when the context is contiguous in the cache, from slot `first_slot` on. Then
    no copy is needed: `kv_views` are each layer's keys and values, views
    [1, num_kv_heads, context_len, head_dim], unless the cache is quantized. `mask` is bool
    [num_tokens, context_len], None where `is_causal` or seeing everything replaces it; with ALiBi
    it is fp32 [num_heads, num_tokens, context_len] and added to the scores.
    """

    rows: slice
    first_slot: int
    context_len: int
    blocks: Tensor | None
    mask: Tensor | None
    is_causal: bool
    kv_views: Sequence[tuple[Tensor, Tensor]] | None


# Of `Scores.visible`: window, chunk and first key.
Visible = tuple[int | None, int | None, int]


def plan_attention(
    spans: Sequence[Span],
    cache: KVCache,
    visible: Visible,
    device: torch.device,
    slopes: Tensor | None = None,
) -> list[AttentionPlan]:
    """Plan causal attention of each span over its blocks, to the keys that are `visible`.

    `slopes` [num_heads] are ALiBi's.
    """
    return [_plan_span(span, cache, visible, device, slopes) for span in spans]


def _plan_span(
    span: Span,
    cache: KVCache,
    visible: Visible,
    device: torch.device,
    slopes: Tensor | None,
) -> AttentionPlan:
    context_len = span.context_len
    used = span.block_table[: -(-context_len // cache.block_size)]
    is_contiguous = used[-1] - used[0] == len(used) - 1 and used == sorted(used)
    mask = _mask(span, visible, device, slopes)
    first_slot = used[0] * cache.block_size
    has_views = is_contiguous and not cache.is_quantized
    return AttentionPlan(
        slice(span.start, span.start + span.num_tokens),
        first_slot,
        context_len,
        None if is_contiguous else torch.tensor(used, device=device),
        mask,
        is_causal=mask is None and span.num_tokens > 1,
        kv_views=_kv_views(cache, first_slot, context_len) if has_views else None,
    )


def _mask(
    span: Span, visible: Visible, device: torch.device, slopes: Tensor | None
) -> Tensor | None:
    window, chunk, first_key = visible
    n, length, prefix = span.num_tokens, span.context_len, span.bidirectional_prefix.length
    is_windowed = any(limit is not None and length > limit for limit in (window, chunk))
    is_partial = n > 1 and (n != length or prefix > 1)
    if slopes is None and not is_windowed and not is_partial and not first_key:
        return None
    keys = torch.arange(length, device=device)
    queries = torch.arange(length - n, length, device=device).unsqueeze(1)
    mask = (keys <= queries) | (keys < prefix)
    if window is not None:
        mask &= keys > queries - window
    if chunk is not None:
        mask &= keys // chunk == queries // chunk
    if first_key:
        mask &= (keys >= first_key) | (keys == queries)
    if slopes is None:
        return mask
    # Relative to the query's position: biases of near keys are small and therefore precise.
    biases = slopes.view(-1, 1, 1) * (keys - queries)
    return biases.masked_fill_(~mask, float("-inf"))


def alibi_slopes(config: ModelConfig) -> Tensor | None:
    """ALiBi's slope of each head, times `alibi_scale`: fp32 [num_heads]; None: no ALiBi.

    Press et al., 2021 (arXiv:2108.12409): a geometric sequence for a power of two; other numbers of
    heads add every second slope of the next power.
    """
    num_heads, scale = config.attention.num_heads, config.attention.scores.alibi_scale
    if scale is None:
        return None
    power = 2 ** (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * (num_heads - power), 2)]
    return torch.tensor(slopes + between) * scale


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
    """Grouped-query attention of q [n, num_heads, head_dim]: [n, num_heads * head_dim].

    `cache` is the layer's, [num_blocks, block_size, 2 * num_kv_heads, head_dim], and already holds
    the rows' own tokens; a quantized context is dequantized temporarily. If it is rotated, so are
    the queries, and the output is rotated back. `grouped`: there are fewer kv heads than heads;
    query head h reads kv head `h // (num_heads / num_kv_heads)`. With `softcap` scores x become
    softcap·tanh(x / softcap). `sinks` [num_heads] are one more score of each head, whose value is 0
    (Xiao et al., 2023, arXiv:2309.17453).
    """
    outputs = []
    q = q if isinstance(cache, Tensor) else cache.rotated(q)
    for plan in plans:
        keys, values = context_of(layer, cache, plan, q.dtype)
        rows = (q if len(plans) == 1 else q[plan.rows]).unsqueeze(0).transpose(1, 2)
        if softcap is not None or sinks is not None:
            out = _explicit_attention(rows, keys, values, plan, scale, softcap, sinks)
        else:
            out = fused_attention(rows, keys, values, plan, scale, grouped)
        out = out.transpose(1, 2)
        out = out if isinstance(cache, Tensor) else cache.rotated(out)
        outputs.append(out.reshape(rows.shape[2], -1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def context_of(
    layer: int, cache: LayerKV, plan: AttentionPlan, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return a row's keys and values [1, num_kv_heads, context_len, head_dim], views if possible.

    Latents are both at once: then it is the same tensor twice.
    """
    if plan.kv_views is not None:
        return plan.kv_views[layer]
    return _keys_and_values(_gather_context(cache, plan, dtype), 1)


def fused_attention(
    q: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, scale: float, grouped: bool
) -> Tensor:
    """Attention of q [1, num_heads, n, head_dim] by torch's operator, in the same shape."""
    mask = plan.mask
    is_bias = mask is not None and mask.is_floating_point()
    if q.is_cpu and q.shape[2] == 1 and q.dtype != torch.float32 and not is_bias:
        return _one_row_attention(q, keys, values, mask, scale)
    # Without fast GEMMs torch's operator is as fast in bf16 as in fp32, in fp16 half as fast.
    dtype = gemm_dtype(q) if q.dtype == torch.float16 else q.dtype
    out = F.scaled_dot_product_attention(
        q.to(dtype),
        keys.to(dtype),
        values.to(dtype),
        attn_mask=mask.to(dtype) if mask is not None and is_bias else mask,
        is_causal=plan.is_causal,
        scale=scale,
        enable_gqa=grouped,
    )
    return out.to(q.dtype)


def _one_row_attention(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Attention of one 16-bit row q [1, num_heads, 1, head_dim] on the CPU, in the same shape.

    Torch's operator takes 3 to 25 times as long for one row per head as for several. So the heads
    that share a kv head are the rows of one head; a head that shares with none is two equal rows.
    """
    num_heads, num_kv_heads = q.shape[1], keys.shape[1]
    group_size = num_heads // num_kv_heads
    rows = q.reshape(1, num_kv_heads, group_size, -1)
    if group_size == 1:
        rows = rows.expand(-1, -1, 2, -1)
    out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scale)
    return out[:, :, :group_size].reshape(q.shape)


def _explicit_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: AttentionPlan,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention with soft-capped scores and sinks, which torch's lacks: [1, heads, n, head_dim].

    Computes a limited number of queries at a time to bound the memory of their scores.
    """
    n, num_kv_heads, dtype = q.shape[2], keys.shape[1], gemm_dtype(q)
    keys, values = keys.to(dtype), values.to(dtype)
    grouped = q.to(dtype).view(1, num_kv_heads, -1, *q.shape[2:])
    mask = plan.mask
    if plan.is_causal:
        mask = torch.ones(n, plan.context_len, dtype=torch.bool, device=q.device).tril_()
    step = max(1, _MAX_SCORES // (q.shape[1] * plan.context_len))
    outputs = []
    for first in range(0, n, step):
        rows = slice(first, first + step)
        scores = (grouped[..., rows, :] @ keys.unsqueeze(2).transpose(-1, -2)).float().mul_(scale)
        if softcap is not None:
            scores = scores.div_(softcap).tanh_().mul_(softcap)
        if mask is not None:
            scores.masked_fill_(~mask[rows], float("-inf"))
        if sinks is not None:
            sink = sinks.float().view(1, num_kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
            probs = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        else:
            probs = scores.softmax(-1)
        outputs.append(probs.to(values.dtype) @ values.unsqueeze(2))
    return torch.cat(outputs, -2).view(q.shape).to(q.dtype)


def _kv_views(cache: KVCache, first_slot: int, length: int) -> Sequence[tuple[Tensor, Tensor]]:
    groups = []
    for slots in cache.slot_ranges(first_slot, length):
        keys, values = _keys_and_values(slots.transpose(1, 2).unsqueeze(1), 2)
        groups.append(list(zip(keys.unbind(), values.unbind(), strict=True)))
    return cache.by_number(groups)


def _keys_and_values(rows: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Split the rows of the cache, which are along `dim`; a single one is a latent."""
    half = rows.shape[dim] // 2
    return (rows.narrow(dim, 0, half), rows.narrow(dim, half, half)) if half else (rows, rows)


def _gather_context(cache: LayerKV, plan: AttentionPlan, dtype: torch.dtype) -> Tensor:
    """Return the context's keys and values as [1, 2 * num_kv_heads, context_len, head_dim]."""
    if isinstance(cache, Tensor):
        flat = _gather_tokens(cache, plan)
    else:
        parts = [_gather_tokens(tensor, plan) for tensor in cache.tensors]
        flat = cache.dequantize(parts, dtype)
    return flat.transpose(0, 1).unsqueeze(0)


def _gather_tokens(blocks: Tensor, plan: AttentionPlan) -> Tensor:
    """Return the context's part of `blocks` [num_blocks, block_size, ...]: [context_len, ...]."""
    if plan.blocks is None:
        end = plan.first_slot + plan.context_len
        return blocks.view(-1, *blocks.shape[2:])[plan.first_slot : end]
    return blocks.index_select(0, plan.blocks).view(-1, *blocks.shape[2:])[: plan.context_len]
