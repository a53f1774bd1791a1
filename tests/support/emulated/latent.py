"""The kernels of latent attention as torch calls on the CPU; see `kernels.py`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor


def _rotated(a: Any, pairs: Tensor) -> Tensor:
    """Return the rotated last elements [n, heads, rope_dim], the first ones of all pairs first."""
    if a.interleaved:
        one, other = pairs[..., 0::2], pairs[..., 1::2]
    else:
        one, other = pairs.chunk(2, -1)
    cos, sin = torch.ones(()), torch.zeros(())
    if a.cos_sin is not None:
        cos, sin = a.cos_sin[a.positions.long()].unsqueeze(1).chunk(2, -1)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


def _latent_rotary(a: Any) -> None:
    a.q[..., -a.rope_dim :] = _rotated(a, a.q[..., -a.rope_dim :])
    latent, key = a.row.split([a.rank, a.rope_dim], 1)
    scale = (latent.square().mean(1, keepdim=True) + a.eps).rsqrt() * a.kv_scale
    rows = torch.cat([latent * scale * a.norm_weight, _rotated(a, key.unsqueeze(1)).squeeze(1)], 1)
    used = a.slot_mapping >= 0
    a.cache.view(-1, a.row_size)[a.slot_mapping[used].long()] = rows[used]


def _latent_attention(a: Any) -> None:
    """Write the finished attention as the sums of a single split, whose weights add up to 1."""
    assert a.num_splits == 1
    rank, size = a.q_latent.shape[2], 1 << a.log2_block_size
    queries = torch.cat([a.q_latent.transpose(0, 1), a.q_rope], -1)
    sums = torch.zeros(a.num_seqs, a.num_heads, rank)
    for i, context in enumerate(a.context_lens.tolist()):
        positions = torch.arange(context)
        slots = a.block_tables[i][positions // size].long() * size + positions % size
        rows = a.cache.view(-1, a.row_size)[slots]
        weights = (queries[i] @ rows[:, : queries.shape[2]].t() * a.scale).softmax(-1)
        sums[i] = weights @ rows[:, :rank]
    statistics = torch.tensor([0.0, 1.0]).repeat(a.num_seqs * a.num_heads)
    a.partials.copy_(torch.cat([sums.flatten(), statistics]))


def _latent_combine(a: Any) -> None:
    assert a.num_splits == 1
    a.out.copy_(a.partials[: a.out.numel()].view(a.out.shape))


LATENT: Mapping[str, Callable[[Any], None]] = MappingProxyType(
    {
        "latent_rotary": _latent_rotary,
        "latent_attention": _latent_attention,
        "latent_combine": _latent_combine,
    }
)
