"""Multi-head latent attention as torch calls: DeepSeek-V2 (arXiv:2405.04434), section 2.1.

The cache holds the latents. A head's keys and values are linear functions of them, so there are two
ways. Expanded: compute keys and values of the whole context, then attend as usual. Absorbed: apply
the transposed key matrix to the query and the value matrix to the output; attention then reads the
latents themselves, as one key that all heads share. The cheaper one is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.half_gemm import gemm_dtype
from swiftchat.engine.model.kv_cache import LayerKV
from swiftchat.engine.model.latent_attention import LatentWeights
from swiftchat.engine.model.norms import layer_norm
from swiftchat.engine.reference.attention import AttentionPlan, context_of, fused_attention
from swiftchat.engine.reference.sparse_index import sparse_plan
from swiftchat.weights.architectures.parts.latent import LatentAttention

# Elements of expanded keys and values in memory at a time.
_MAX_EXPANDED = 2**25


@dataclass(frozen=True)
class LatentInputs:
    """What a layer's attention computes with, at first not rotated.

    Queries [n, num_heads, head_dim], cache rows [n, 1, cached_dim], and of a sparse index the
    queries [n, heads, dim] and weights [n, heads]. `rotated` are the parts to rotate, as views in
    the half-split layout.
    """

    queries: Tensor
    rows: Tensor
    rotated: Sequence[Tensor]
    index_queries: Tensor | None = None
    index_weights: Tensor | None = None


def project(projected: Tensor, config: LatentAttention, weights: LatentWeights) -> LatentInputs:
    """Return the inputs of the attention of all tokens.

    `projected` are the input projections: those of queries and latents, and with a sparse index
    those of its keys and weights, one beside the other.
    """
    index, ends = config.index, projected.shape[1]
    ends -= 0 if index is None else index.num_heads
    q, row, index_weights = projected.tensor_split((ends - config.cached_dim, ends), 1)
    low_rank: Tensor | None = None
    if weights.q_b is not None and weights.q_norm is not None:
        low_rank = rms_norm(q, weights.q_norm, config.norm_eps)
        q = weights.q_b.matmul(low_rank)
    q = q.reshape(len(q), -1, config.head_dim)
    latent, shared, index_key = row.tensor_split((config.kv_rank, config.key_dim), 1)
    latent = rms_norm(latent, weights.kv_norm, config.norm_eps)
    if config.q_scale != 1.0:
        q = q * config.q_scale
    if config.kv_scale != 1.0:
        latent = latent * config.kv_scale
    if config.interleaved:
        q = torch.cat([q[..., : config.nope_dim], _halves(q[..., config.nope_dim :])], -1)
        shared = _halves(shared)
    first, width = config.kv_rank, config.rope_dim
    if index is None or low_rank is None or weights.index_q is None or weights.index_norm is None:
        rows = torch.cat([latent, shared], 1).unsqueeze(1)
        return LatentInputs(q, rows, [q[..., config.nope_dim :], rows[..., first:]])
    index_key = layer_norm(
        index_key.float(), weights.index_norm, weights.index_norm_bias, index.norm_eps
    ).to(q.dtype)
    index_q = weights.index_q.matmul(low_rank).view(len(q), index.num_heads, index.dim)
    if index.interleaved:
        index_key, index_q = (
            torch.cat([_halves(x[..., :width]), x[..., width:]], -1) for x in (index_key, index_q)
        )
    rows = torch.cat([latent, shared, index_key], 1).unsqueeze(1)
    rotated = [
        q[..., config.nope_dim :],
        rows[..., first : first + width],
        rows[..., config.key_dim : config.key_dim + width],
        index_q[..., :width],
    ]
    return LatentInputs(q, rows, rotated, index_q, index_weights)


def latent_attention(
    inputs: LatentInputs,
    layer: int,
    cache: LayerKV,
    plans: Sequence[AttentionPlan],
    scale: float,
    config: LatentAttention,
    kv_b: Tensor,
) -> Tensor:
    """Causal attention of rotated queries: [n, num_heads * value_dim].

    `cache` is the layer's, [num_blocks, block_size, 1, cached_dim], and already holds the rows of
    the queries' own tokens.
    """
    outputs, queries = [], inputs.queries
    for plan in plans:
        context, _ = context_of(layer, cache, plan, queries.dtype)
        index, index_q, index_weights = config.index, inputs.index_queries, inputs.index_weights
        own = plan
        if index is not None and index_q is not None and index_weights is not None:
            keys = context[0, 0, :, config.key_dim :]
            own = sparse_plan(plan, index_q[plan.rows], index_weights[plan.rows], keys, index)
            context = context[..., : config.key_dim]
        rows = queries if len(plans) == 1 else queries[plan.rows]
        is_expanded = expanding_is_cheaper(config, len(rows), plan.context_len)
        attend = _expanded if is_expanded else _absorbed
        outputs.append(attend(rows, context, own, scale, config, kv_b))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def expanding_is_cheaper(config: LatentAttention, num_queries: int, context_len: int) -> bool:
    """Compare the multiplications of the two ways, for one head."""
    applied = config.kv_rank * (config.nope_dim + config.value_dim)  # the matrix, to one token
    pairs = num_queries * context_len
    expanded = context_len * applied + pairs * (config.head_dim + config.value_dim)
    return expanded < num_queries * applied + pairs * 2 * config.key_dim


def _absorbed(
    q: Tensor,
    context: Tensor,
    plan: AttentionPlan,
    scale: float,
    config: LatentAttention,
    kv_b: Tensor,
) -> Tensor:
    """Attention over the context's rows [1, 1, context_len, key_dim] as shared keys and values.

    Of the values only the latents count; with rows of one width torch's fast operator applies.
    """
    n, num_heads, nope = len(q), q.shape[1], config.nope_dim
    plain, rotated = q[..., :nope].transpose(0, 1), q[..., nope:].transpose(0, 1)
    queries = torch.cat([_bmm(plain, kv_b[:, :nope]), rotated], -1).unsqueeze(0)
    if n == 1:  # the heads of one token are queries of one head
        out = fused_attention(queries.transpose(1, 2), context, context, plan, scale, False)
        out = out.transpose(1, 2)
    else:
        out = fused_attention(queries, context, context, plan, scale, True)
    latents = out[0, ..., : config.kv_rank]
    values = _bmm(latents, kv_b[:, nope:].transpose(1, 2))
    return values.transpose(0, 1).reshape(n, num_heads * config.value_dim)


def _expanded(
    q: Tensor,
    context: Tensor,
    plan: AttentionPlan,
    scale: float,
    config: LatentAttention,
    kv_b: Tensor,
) -> Tensor:
    """Attention over keys and values computed from the context's rows, some heads at a time."""
    n, num_heads, nope, size = len(q), q.shape[1], config.nope_dim, config.value_dim
    latents, shared = context[0, 0].tensor_split((config.kv_rank,), 1)
    dtype = gemm_dtype(q)
    latents, shared, queries = latents.to(dtype), shared.to(dtype), q.to(dtype)
    width = max(config.head_dim, size)  # torch's fast operator needs keys and values of one width
    step = max(1, _MAX_EXPANDED // (2 * len(latents) * width))
    out = q.new_empty(n, num_heads, size)
    for first in range(0, num_heads, step):
        heads = slice(first, first + step)
        matrices = kv_b[heads].to(dtype)
        keys = latents.unsqueeze(0) @ matrices[:, :nope].transpose(1, 2)
        values = latents.unsqueeze(0) @ matrices[:, nope:].transpose(1, 2)
        keys = torch.cat([keys, shared.expand(len(keys), -1, -1)], -1)
        part = fused_attention(
            _padded(queries[:, heads].transpose(0, 1), width),
            _padded(keys, width),
            _padded(values, width),
            plan,
            scale,
            False,
        )
        out[:, heads] = part[0, ..., :size].transpose(0, 1).to(out.dtype)
    return out.view(n, -1)


def _padded(x: Tensor, width: int) -> Tensor:
    """Return x [heads, n, size] with zeros up to `width`: [1, heads, n, width]."""
    return F.pad(x, (0, width - x.shape[-1])).unsqueeze(0)


def _bmm(x: Tensor, matrices: Tensor) -> Tensor:
    """Multiply x [heads, n, columns] with the matrices [heads, columns, rows]."""
    dtype = gemm_dtype(x)
    return torch.bmm(x.to(dtype), matrices.to(dtype)).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMSNorm of the rows of x, in fp32, rounded to its dtype."""
    return (F.rms_norm(x.float(), weight.shape, eps=eps) * weight.float()).to(x.dtype)


def _halves(x: Tensor) -> Tensor:
    """Move the first elements of all pairs before the second ones."""
    return torch.cat([x[..., 0::2], x[..., 1::2]], -1)
