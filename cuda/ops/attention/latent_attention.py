"""Decode steps of multi-head latent attention: `kernels/attention/latent_*.cu`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.signature import Macro

_RANKS, _ROPES = (256, 512), (32, 64)
_LARGE_SHARED_BYTES = 200 * 1024
_MAX_SPLITS = 64
_MIN_SPLIT_TILES = 1
_ROTARY_THREADS, _COMBINE_THREADS = 128, 128
_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Layout:
    """How latent_attention is compiled: elements of a row, and heads and tokens of a block."""

    dtype: torch.dtype
    rank: int
    rope: int
    heads: int
    tokens: int
    stages: int
    warps: int

    @classmethod
    def of(cls, dtype: torch.dtype, rank: int, rope: int, num_heads: int, large: bool) -> "Layout":
        """Return the layout for GPUs with much shared memory (`large`), or with 99 KiB."""
        if not large:
            return cls(dtype, rank, rope, 16, 32, 2, 4)
        if num_heads <= 16:
            return cls(dtype, rank, rope, 16, 64, 2, 8)
        if num_heads <= 32:
            return cls(dtype, rank, rope, 32, 64, 2, 8)
        return cls(dtype, rank, rope, 64, 32, 3, 8)

    @property
    def shared_bytes(self) -> int:
        panels = -(-(self.rank + self.rope) // 64)
        return (self.heads * (panels + 1) + self.stages * self.tokens * panels) * 128

    @property
    def macros(self) -> dict[str, Macro]:
        return {
            "DTYPE": self.dtype,
            "RANK": self.rank,
            "ROPE": self.rope,
            "HEADS": self.heads,
            "TOKENS": self.tokens,
            "STAGES": self.stages,
            "NUM_WARPS": self.warps,
        }


def latent_attention_fits(dtype: torch.dtype, rank: int, rope: int) -> bool:
    """Return whether the kernels attend to rows of these sizes."""
    return dtype in _DTYPES and rank in _RANKS and rope in _ROPES


def latent_rotary(
    gpu: Gpu,
    q: Tensor,
    row: Tensor,
    cache: Tensor,
    *,
    norm_weight: Tensor,
    cos_sin: Tensor | None,
    positions: Tensor,
    slot_mapping: Tensor,
    interleaved: bool,
    eps: float,
    kv_scale: float = 1.0,
) -> None:
    """Rotate the last elements of each head of q in place; store each token's latent and key.

    q is T [n, num_heads, head_dim], `row` T [n, rank + rope_dim], both maybe parts of wider rows;
    `norm_weight` T [rank], `cos_sin` fp32 [num_positions, rope_dim], None: no rotation. Row
    slot_mapping[i] of the cache T [num_blocks, 1, block_size, row_size] receives the RMSNorm of the
    latent times `kv_scale` and the rotated key; below 0 none. With `interleaved`, rotated pairs are
    neighbors in q and row; results have all first elements before the second ones.
    """
    (n, num_heads, head_dim), rank = q.shape, len(norm_weight)
    rope_dim = row.shape[1] - rank if cos_sin is None else cos_sin.shape[1]
    row_size = cache.shape[-1]
    if rope_dim % 2 or not 2 <= rope_dim <= min(256, head_dim) or rank + rope_dim > row_size:
        raise ValueError(f"a rope of {rope_dim} does not fit heads of {head_dim} and the cache")
    per_block = _ROTARY_THREADS // (rope_dim // 2)
    gpu.kernel("latent_rotary", DTYPE=q.dtype)(
        (n, 1 + -(-num_heads // per_block)),
        _ROTARY_THREADS,
        num_bytes=2 * n * (num_heads * rope_dim + row_size) * q.itemsize,
        q=q,
        row=row,
        norm_weight=norm_weight,
        cos_sin=cos_sin,
        positions=positions,
        slot_mapping=slot_mapping,
        cache=cache,
        rope_dim=rope_dim,
        interleaved=interleaved,
        eps=eps,
        kv_scale=kv_scale,
    )


def latent_attention(
    gpu: Gpu,
    q_latent: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    *,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
    out: Tensor,
) -> None:
    """Write softmax(scale (q_latent · latent + q_rope · key)) · latents to `out`.

    One query token of each sequence: `out` T [num_seqs, num_heads, rank], `q_latent` T
    [num_heads, num_seqs, rank], `q_rope` T [num_seqs, num_heads, rope_dim], maybe the last elements
    of wider heads and rows. The cache T [num_blocks, 1, block_size, row_size] has latents and keys
    in the first elements of its rows. `context_lens` int32 [num_seqs] include the query's token; 0
    gives zeros. Entries of `block_tables` int32 [num_seqs, max_blocks] without a token are unused.
    """
    num_seqs, num_heads, rank = out.shape
    rope, (_, rows, block_size, row_size) = q_rope.shape[2], cache.shape
    dtype = out.dtype
    if not latent_attention_fits(dtype, rank, rope):
        raise ValueError(f"the kernel does not take {rank} + {rope} elements of {dtype}")
    if rows != 1 or block_size & (block_size - 1) or row_size < rank + rope or row_size % 8:
        raise ValueError(f"a cache of {list(cache.shape)} does not have such rows")
    if num_seqs == 0:
        return
    layout = Layout.of(dtype, rank, rope, num_heads, gpu.block_shared_bytes > _LARGE_SHARED_BYTES)
    blocks = -(-num_heads // layout.heads) * num_seqs
    most_tiles = -(-block_tables.shape[1] * block_size // layout.tokens)
    num_splits = max(1, min(_MAX_SPLITS, gpu.num_sms // blocks, most_tiles // _MIN_SPLIT_TILES))
    partials = torch.empty(num_splits * num_seqs * num_heads * (rank + 2), device=gpu.device)
    gpu.kernel("latent_attention", **layout.macros)(
        blocks * num_splits,
        32 * layout.warps,
        shared_bytes=layout.shared_bytes,
        num_bytes=2 * out.nbytes,
        q_latent=q_latent,
        q_rope=q_rope,
        cache=cache,
        block_tables=block_tables,
        context_lens=context_lens,
        partials=partials,
        num_seqs=num_seqs,
        num_heads=num_heads,
        log2_block_size=block_size.bit_length() - 1,
        num_splits=num_splits,
        scale=scale,
    )
    latent_combine(gpu, partials, num_splits, out)


def latent_combine(gpu: Gpu, partials: Tensor, num_splits: int, out: Tensor) -> None:
    """Write the attention over all splits to out T [num_seqs, num_heads, rank].

    `partials` fp32 are sums [num_splits, *out.shape], then the greatest score (in units of log2)
    and the sum of the weights, [num_splits, num_seqs, num_heads, 2]. Sums of a split with a sum of
    weights of 0 are not read.
    """
    rank, num_rows = out.shape[-1], out.numel() // out.shape[-1]
    if not 1 <= num_splits <= _MAX_SPLITS or rank % 4 or rank > 4 * _COMBINE_THREADS:
        raise ValueError(f"the kernel does not take {num_splits} splits of {rank} elements")
    gpu.kernel("latent_combine", DTYPE=out.dtype)(
        num_rows,
        _COMBINE_THREADS,
        num_bytes=partials.nbytes + out.nbytes,
        partials=partials,
        out=out,
        num_splits=num_splits,
        num_rows=num_rows,
    )
