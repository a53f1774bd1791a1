"""Attention of many queries over a paged cache: `kernels/attention/prefill_attention.cu`."""

from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any, Self

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.combine_splits import MAX_SPLITS, combine_splits, new_partials
from swiftchat.cuda.ops.attention.prefill_shapes import PrefillShape, prefill_shape
from swiftchat.cuda.quantized_kv import KVScales, cache_arguments, scheme_of
from swiftchat.cuda.tensor_map import empty_map, heads_map, tensor_map

# Keys and values of the heads that run at the same time should fit the L2 of a large GPU.
_L2_BYTES = 32 * 2**20
# Fewer keys take less time than combining the results; as in the kernel.
_MIN_SPLIT_KEYS = 256
_BOX_QUERIES = 64  # a consumer warpgroup's, of one head


def prefill_attention(
    gpu: Gpu,
    q: Tensor,
    cache: Tensor,
    *,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    max_num_tokens: int,
    scale: float,
    out: Tensor,
    window: int = 0,
    chunk: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    path: str = "auto",
    max_splits: int = MAX_SPLITS,
    kv_scales: KVScales | None = None,
) -> None:
    """Write the attention of q over the cache to out [num_tokens, num_heads, head_dim].

    q has out's shape; its rows may be apart. Rows query_starts[i] … query_starts[i + 1] - 1 are the
    last tokens of sequence i, at most `max_num_tokens`. All context_lens[i] tokens of it are in the
    cache [num_blocks, 2 * num_kv_heads, block_size, head_dim], in the blocks block_tables[i]; all
    int32. With `kv_scales` the cache is int8, q is not fp32 and head_dim a multiple of 16, with
    int5 64 or 128; then q is rotated, as `rotary` leaves it, and so is `out`.

    A query sees the keys up to its own position; with a `window` of these only keys > position -
    window, with a `chunk` only those from the last multiple of it up to the position on. Scores are
    scaled, then capped by `softcap` (0: off), then reduced by alibi_slopes [num_heads] (fp32) for
    each position of distance. `sinks` [num_heads] (fp32) are the scores of one more key, whose
    value is 0. At most `max_splits` thread blocks share the keys of the same queries.
    """
    dtype = cache.dtype if kv_scales is None else q.dtype
    _check_cache(cache, out.shape[1], out.shape[2], dtype, kv_scales)
    if min(window, chunk, softcap) < 0 or scale <= 0:
        limits = f"window {window}, chunk {chunk}, softcap {softcap}"
        raise ValueError(f"{limits} and scale {scale} must be positive")
    biased = softcap > 0 or alibi_slopes is not None
    shape = prefill_shape(gpu, dtype, out.shape[2], biased, path, scheme_of(kv_scales))
    group_size = 1 if alibi_slopes is not None else 2 * out.shape[1] // cache.shape[1]
    most_keys = block_tables.shape[1] * cache.shape[2]
    max_splits = min(max_splits, MAX_SPLITS, most_keys // _MIN_SPLIT_KEYS)
    counts = (len(out), len(context_lens), max_num_tokens)
    tiles = _Tiles.of(gpu, shape, out.shape[1], group_size, counts, max_splits)
    if tiles.num_tiles == 0:
        return
    split_arguments: dict[str, Any] = {}
    if tiles.num_splits > 1:
        shape, partials = replace(shape, split=True), new_partials(gpu, tiles.num_splits, out)
        split_arguments = {
            "partials": partials,
            "group_size": tiles.group_size,
            "num_splits": tiles.num_splits,
        }
    num_blocks = tiles.num_blocks
    if shape.path == "wgmma":
        num_blocks = min(num_blocks, gpu.num_sms)
    gpu.kernel("prefill_attention", **shape.macros(dtype))(
        num_blocks,
        shape.num_threads,
        shared_bytes=shape.shared_bytes,
        num_bytes=2 * out.nbytes,
        **_maps(gpu, shape, q, cache),
        **cache_arguments(cache, kv_scales),
        **split_arguments,
        q=q,
        block_tables=block_tables,
        query_starts=query_starts,
        context_lens=context_lens,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        out=out,
        num_seqs=len(context_lens),
        num_heads=out.shape[1],
        num_kv_heads=cache.shape[1] // 2,
        window=window,
        chunk=chunk,
        num_tiles=tiles.num_tiles,
        heads_together=_heads_together(cache, out.shape[1], max_num_tokens),
        scale=scale,
        softcap=softcap,
    )
    if tiles.num_splits > 1:
        combine_splits(gpu, partials, query_starts, tiles.num_splits, out)


@dataclass(frozen=True)
class _Tiles:
    """How the queries and keys of a call are divided among thread blocks.

    `num_tiles` is an upper bound of the tiles of queries, for each group of `group_size` heads.
    `num_splits` blocks share the keys of a tile; with one, groups have a single head.
    """

    num_tiles: int
    num_heads: int
    group_size: int = 1
    num_splits: int = 1

    @property
    def num_blocks(self) -> int:
        return self.num_tiles * (self.num_heads // self.group_size) * self.num_splits

    @classmethod
    def of(
        cls,
        gpu: Gpu,
        shape: PrefillShape,
        num_heads: int,
        group_size: int,
        counts: tuple[int, int, int],
        max_splits: int,
    ) -> Self:
        """Split the keys if too few queries would leave half of the multiprocessors idle.

        `counts` are tokens, sequences, and the most tokens of a sequence.
        """
        num_tokens, num_seqs, max_num_tokens = counts
        grouped = _num_tiles(shape, num_tokens * group_size, num_seqs, max_num_tokens * group_size)
        num_blocks = grouped * (num_heads // group_size)
        num_splits = min(max_splits, gpu.num_sms // num_blocks) if num_blocks else 0
        if shape.path != "fma" and num_splits > 1:
            return cls(grouped, num_heads, group_size, num_splits)
        return cls(_num_tiles(shape, *counts), num_heads)


def _maps(gpu: Gpu, shape: PrefillShape, q: Tensor, cache: Tensor) -> dict[str, Any]:
    """Return the tensor maps of the `wgmma` path; others get empty ones."""
    if shape.path != "wgmma":
        return dict.fromkeys(("cache_map", "q_map"), empty_map)
    return {
        "cache_map": partial(tensor_map, gpu, cache, min(cache.shape[2], shape.num_keys)),
        "q_map": partial(heads_map, gpu, q, _BOX_QUERIES),
    }


def _num_tiles(shape: PrefillShape, num_tokens: int, num_seqs: int, max_num_tokens: int) -> int:
    """Return an upper bound of the tiles of queries of all sequences."""
    if num_tokens == 0 or num_seqs == 0:
        return 0
    most_tiles = num_seqs * ceil(max_num_tokens / shape.num_rows)
    return min(most_tiles, num_tokens // shape.num_rows + num_seqs)


def _check_cache(
    cache: Tensor, num_heads: int, head_dim: int, dtype: torch.dtype, kv_scales: KVScales | None
) -> None:
    num_blocks, twice_kv_heads, block_size, _ = cache.shape
    num_kv_heads = twice_kv_heads // 2
    if kv_scales is not None:
        kv_scales.check(head_dim, dtype)
    if num_kv_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads do not divide among {num_kv_heads} KV heads")
    if block_size < 4 or block_size & (block_size - 1):
        raise ValueError(f"block_size must be a power of two from 4 on, not {block_size}")
    if num_blocks * twice_kv_heads * block_size >= 2**31:
        raise ValueError("the cache must have fewer than 2^31 rows")


def _heads_together(cache: Tensor, num_heads: int, max_num_tokens: int) -> int:
    """Return how many query heads run at the same time.

    They share the largest number of KV heads that divides all KV heads and whose keys and values
    fit the L2, at least one.
    """
    num_kv_heads, head_dim = cache.shape[1] // 2, cache.shape[3]
    head_bytes = 2 * max_num_tokens * head_dim * cache.itemsize
    kv_heads = max(
        count
        for count in range(1, num_kv_heads + 1)
        if num_kv_heads % count == 0 and (count == 1 or count * head_bytes <= _L2_BYTES)
    )
    return kv_heads * (num_heads // num_kv_heads)
