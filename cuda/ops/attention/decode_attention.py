"""Attention of one token a sequence over a paged cache: `kernels/attention/decode_attention.cu`."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.decode_rotary import ROTARY_MACROS, DecodeRotary, rotated_bytes
from swiftchat.cuda.quantized_kv import (
    PACKED_HEAD_DIMS,
    KVScales,
    cache_arguments,
    scheme_macros,
    scheme_of,
)
from swiftchat.cuda.signature import Macro
from swiftchat.cuda.tensor_map import tensor_map

# The kernel is compiled for these head_dims; others are padded. fp32 is not optimized.
_HEAD_DIMS = (64, 80, 96, 128, 256, 512)
_FP32_HEAD_DIMS = (64, 128, 256, 512)
_QUANTIZED_HEAD_DIMS = (64, 96, 128, 256, 512)
# Tokens that a warp takes at a time, as in the kernel.
_STEPS = {None: 16, "int8": 32, "fp8": 32, "int5": 64}
_PANEL_ROW_BYTES = 128  # a tile consists of panels with this many bytes a token
_RING_BYTES = 128 * 1024  # of all warps; more loads in flight are not faster
_OTHER_SHARED_BYTES = 3 * 1024  # at most: statistics, barriers, alignment
_BLOCKS_PER_SM = 1
_INT5_BUSY_WARPS = 4  # with a step each, as in the kernel
_INT5_STAGES = 2  # at least
_INT5_RING_BYTES = 147_456
_MAX_SPLITS = 256
_LARGE_HEAD_DIM = 256  # as in the kernel
# The least number of splits while there are few sequences. Otherwise one long sequence could keep
# a few multiprocessors busy after the others are done. Many sequences even out. Short sequences use
# no more splits than there are multiprocessors for.
_MIN_SPLITS = 4


def decode_attention_workspace(gpu: Gpu, max_seqs: int, num_heads: int, head_dim: int) -> Tensor:
    """Return the workspace of `decode_attention` for up to `max_seqs` sequences.

    All its bits are set between calls. Calls that share it must not overlap.
    """
    # The splits fill the multiprocessors with blocks of at most 16 heads, or are _MIN_SPLITS.
    rows = max(16 * _BLOCKS_PER_SM * gpu.num_sms, _MIN_SPLITS * max_seqs * num_heads)
    size = rows * _partial_size(head_dim)
    return torch.full((size,), -1, dtype=torch.int32, device=gpu.device).view(torch.float32)


@dataclass(frozen=True)
class Layout:
    """How the kernel is compiled for a head_dim and a number of query heads on each KV head."""

    dtype: torch.dtype
    kv_scheme: str | None
    padded_dim: int
    rows: int  # query heads of a block
    warps: int
    stages: int  # tiles of a step's keys or values in a warp's ring
    tile_bytes: int
    step: int  # tokens
    rotary: bool = False

    @classmethod
    def of(
        cls,
        dtype: torch.dtype,
        head_dim: int,
        group_size: int,
        shared_bytes: int,
        kv_scheme: str | None = None,
        *,
        rotary: bool = False,
    ) -> "Layout":
        """Return the layout for `group_size` query heads a KV head and `shared_bytes` a block."""
        padded_dim = next(size for size in head_dims(dtype, kv_scheme) if size >= head_dim)
        # More than 8 heads with 256 dimensions or more need too many registers.
        rows = 16 if group_size > 8 and padded_dim < 256 and dtype != torch.float32 else 8
        step, itemsize = _STEPS[kv_scheme], 1 if kv_scheme else dtype.itemsize
        tile_bytes = -(-padded_dim * itemsize // _PANEL_ROW_BYTES) * _PANEL_ROW_BYTES * step
        warps = 8 if tile_bytes <= 4096 else 4 if tile_bytes <= 8192 else 2
        room_bytes, largest_bytes = shared_bytes - _OTHER_SHARED_BYTES, _RING_BYTES
        if rotary:
            room_bytes -= rotated_bytes(rows, padded_dim, dtype.itemsize)
        if kv_scheme == "int5":
            tile_bytes = step * padded_dim * 3 // 4  # of keys
            warps = 12 if rows == 8 else 8  # more have too few registers
            room_bytes -= 2 * rows * padded_dim + 80 * rows  # the query's integers
            largest_bytes = _INT5_RING_BYTES
        if kv_scheme:  # the scales are beside the ring
            room_bytes = room_bytes * tile_bytes // (tile_bytes + 4 * step)
        ring_bytes = min(largest_bytes, room_bytes)
        while kv_scheme == "int5" and ring_bytes // (warps * tile_bytes) < _INT5_STAGES:
            warps //= 2
        # At the end, a warp's sums take the place of its tiles.
        while ring_bytes // (warps * tile_bytes) * tile_bytes < rows * (padded_dim + 4) * 4:
            warps //= 2
        stages = min(8, ring_bytes // (warps * tile_bytes))
        return cls(dtype, kv_scheme, padded_dim, rows, warps, stages, tile_bytes, step, rotary)

    @property
    def busy_tokens(self) -> int:
        """Tokens that keep a split busy."""
        busy = _INT5_BUSY_WARPS if self.kv_scheme == "int5" else self.warps
        return self.step * min(self.warps, busy)

    @property
    def macros(self) -> dict[str, Macro]:
        return {
            "DTYPE": self.dtype,
            "HEAD_DIM": self.padded_dim,
            "ROWS": self.rows,
            "NUM_WARPS": self.warps,
            "NUM_STAGES": self.stages,
            **scheme_macros(self.kv_scheme),
            **(ROTARY_MACROS if self.rotary else {}),
        }


def head_dims(dtype: torch.dtype, kv_scheme: str | None = None) -> tuple[int, ...]:
    """Return the head_dims that the kernel is compiled for."""
    if kv_scheme:
        return PACKED_HEAD_DIMS if kv_scheme == "int5" else _QUANTIZED_HEAD_DIMS
    return _FP32_HEAD_DIMS if dtype == torch.float32 else _HEAD_DIMS


def decode_attention(
    gpu: Gpu,
    q: Tensor,
    cache: Tensor,
    *,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
    out: Tensor,
    workspace: Tensor,
    window: int = 0,
    chunk: int = 0,
    first_key: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    new_tokens: int = 0,
    even_lengths: bool = False,
    kv_scales: KVScales | None = None,
    rotary: DecodeRotary | None = None,
) -> None:
    """Write softmax(scale q Kᵀ) V to `out` [num_seqs, num_heads, head_dim], T like q and cache.

    q has the shape of `out` and may be the first columns of wider rows. The cache is
    [num_blocks, 2 * num_kv_heads, block_size, head_dim], key heads first; with `kv_scales` it is
    int8, T is not fp32 and head_dim is a multiple of 16, or with int5 64 or 128; then q is rotated
    as `rotary` leaves it, and `out` is not. `context_lens` int32 [num_seqs] include
    the query's token; 0 gives zeros. Entries of `block_tables` int32 [num_seqs, max_blocks] without
    a visible token are not used. The last `window` tokens are visible (0: all), of these those from
    the last multiple of `chunk` up to the query on (0: all), of these those from `first_key` on and
    the query's own; `softcap` caps the scores (0: off),
    and `alibi_slopes` fp32 [num_heads] times the distance to the last token is added. `sinks` fp32
    [num_heads] are the scores of one more key, whose value is 0. `new_tokens`, if not 0, promises
    that since the stream was idle, or since the current graph began, no kernel has written anything
    that this one reads, except q, and the keys and values of this many last tokens of each
    sequence. `even_lengths` is a hint that the sequences have about as many tokens.

    With `rotary`, q is neither normalized nor rotated, and gates, keys and values follow it in each
    row: the newest keys and values are stored in the cache here, and q does not change. Then
    new_tokens is 1, the promise is also about positions and slots, and the cache is not quantized.
    """
    if len(q) == 0:
        return
    num_kv_heads = cache.shape[1] // 2
    _check_sizes(cache, q.shape[2], q.shape[1], (window, chunk, first_key), softcap)
    if kv_scales is not None:
        kv_scales.check(q.shape[2], q.dtype)
    if rotary is not None:
        rotary.check(q, num_kv_heads, new_tokens)
        if kv_scales is not None:
            raise ValueError("decode_attention does not rotate queries for a quantized cache")
    plan = _Plan.of(
        *(gpu, q, cache, block_tables.shape[1], min(filter(None, (window, chunk)), default=0)),
        scheme_of(kv_scales),
        even=even_lengths,
        rotary=rotary is not None,
    )
    plan.check_workspace(workspace, q)
    gpu.kernel("decode_attention", **plan.layout.macros)(
        plan.num_blocks,
        32 * plan.layout.warps,
        shared_bytes=plan.shared_bytes,
        num_bytes=2 * out.nbytes,
        **plan.arguments(gpu, cache),
        **cache_arguments(cache, kv_scales),
        **({} if rotary is None else rotary.arguments()),
        q=q,
        block_tables=block_tables,
        context_lens=context_lens,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        out=out,
        workspace=workspace,
        num_kv_heads=num_kv_heads,
        window=window,
        chunk=chunk,
        first_key=first_key,
        new_tokens=new_tokens,
        scale=scale,
        softcap=softcap,
    )


@dataclass(frozen=True)
class _Plan:
    """How a launch divides its work."""

    layout: Layout
    group_size: int
    num_splits: int
    few_splits: int  # of a short sequence
    together: bool  # whether all splits of a sequence combine their results
    num_blocks: int  # of the grid
    shared_bytes: int

    @classmethod
    def of(
        cls,
        gpu: Gpu,
        q: Tensor,
        cache: Tensor,
        max_blocks: int,
        window: int,
        scheme: str | None,
        *,
        even: bool,
        rotary: bool,
    ) -> "_Plan":
        num_seqs, num_heads, head_dim = q.shape
        num_kv_heads, block_size = cache.shape[1] // 2, cache.shape[2]
        group_size = num_heads // num_kv_heads
        sizes = q.dtype, head_dim, group_size
        layout = Layout.of(*sizes, gpu.block_shared_bytes, scheme, rotary=rotary)
        head_tiles = num_kv_heads * -(-group_size // layout.rows)
        visible = min(max_blocks * block_size, window + layout.step if window else 2**31)
        units, step = head_tiles * num_seqs, layout.busy_tokens
        few_splits = _num_splits(gpu, units, visible, step, least=1)
        num_splits = few_splits if even else _num_splits(gpu, units, visible, step)
        blocks = units * num_splits
        # Two blocks share a multiprocessor, or one and a block of `linear` with several rows.
        if blocks > gpu.num_sms or num_seqs > 1:
            layout = Layout.of(*sizes, gpu.sm_shared_bytes // 2, scheme, rotary=rotary)
        # One block for each multiprocessor and room for two: the next kernel gets a block on each.
        ring_bytes = layout.warps * layout.stages * layout.tile_bytes
        shared_bytes = max(ring_bytes, gpu.sm_shared_bytes // 3)
        # They wait for each other: all of a sequence must have a multiprocessor at the same time.
        together = layout.padded_dim >= _LARGE_HEAD_DIM and head_tiles * num_splits <= gpu.num_sms
        num_blocks = max(blocks, gpu.num_sms)
        return cls(layout, group_size, num_splits, few_splits, together, num_blocks, shared_bytes)

    def check_workspace(self, workspace: Tensor, q: Tensor) -> None:
        num_seqs, num_heads, head_dim = q.shape
        needed = num_seqs * num_heads * self.num_splits * _partial_size(head_dim)
        if workspace.numel() < needed:
            raise ValueError(f"the workspace has {workspace.numel()} elements; {needed} are needed")

    def arguments(self, gpu: Gpu, cache: Tensor) -> dict[str, Any]:
        return {
            "map": partial(tensor_map, gpu, cache, min(cache.shape[2], self.layout.step)),
            "group_size": self.group_size,
            "num_splits": self.num_splits,
            "few_splits": self.few_splits,
            "together": self.together,
        }


def _partial_size(head_dim: int) -> int:
    """Return the elements that a split stores for a head: sums, and two for every four sums."""
    return head_dim // 4 * 6


def _num_splits(
    gpu: Gpu, blocks: int, max_tokens: int, block_tokens: int, least: int = _MIN_SPLITS
) -> int:
    """Return the splits of a sequence: enough to use all multiprocessors, none without tokens."""
    sm_blocks = _BLOCKS_PER_SM * gpu.num_sms
    splits = max(sm_blocks // blocks, least if blocks < 2 * sm_blocks else 1)
    return max(1, min(splits, _MAX_SPLITS, -(-max_tokens // block_tokens)))


def _check_sizes(
    cache: Tensor, head_dim: int, num_heads: int, limits: tuple[int, int, int], softcap: float
) -> None:
    num_blocks, kv_rows, block_size, _ = cache.shape
    if head_dim % 8 or not 8 <= head_dim <= _HEAD_DIMS[-1]:
        raise ValueError(f"head_dim must be a multiple of 8 up to {_HEAD_DIMS[-1]}, not {head_dim}")
    if block_size < 4 or block_size & (block_size - 1):
        raise ValueError(f"block_size must be a power of two from 4 on, not {block_size}")
    if kv_rows < 2 or kv_rows % 2 or num_heads % (kv_rows // 2):
        raise ValueError(f"{num_heads} query heads do not divide among {kv_rows} / 2 KV heads")
    if num_blocks * kv_rows * block_size >= 2**31:
        raise ValueError(f"a cache of {list(cache.shape)} has 2^31 rows or more")
    if min(*limits, softcap) < 0:
        raise ValueError(
            f"window, chunk, first_key and softcap must be 0 or more, not {(*limits, softcap)}"
        )
