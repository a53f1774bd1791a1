"""Attention of one token a sequence over a paged cache: `kernels/attention/decode_attention.cu`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.quantized_cache import CODES, Codes
from swiftchat.cuda.tensor_map import tensor_map

# What head_dim is padded to; fp32 is not made for speed.
_HEAD_DIMS = (64, 80, 96, 128, 256)
_FP32_HEAD_DIMS = (64, 128, 256)
_CODES_HEAD_DIMS = (64, 96, 128, 256)
_STEP, _CODES_STEP = 16, 32  # tokens a warp takes at a time, as in the kernel
_PANEL_ROW_BYTES = 128  # tiles consist of panels with so much of each token, as in the kernel
_RING_BYTES = 128 * 1024  # of all warps; more on their way is not faster
_OTHER_SHARED_BYTES = 3 * 1024  # at most: statistics, barriers, alignment
_BLOCKS_PER_SM = 1
_MAX_SPLITS = 256
# So many splits at least while there are few sequences: their lengths differ, and one long one
# must not keep a few multiprocessors busy after all others. Chance does that for many.
_UNEVEN_SPLITS = 4


def decode_attention_workspace(gpu: Gpu, max_seqs: int, num_heads: int, head_dim: int) -> Tensor:
    """What `decode_attention` of up to so many sequences needs, for calls one after the other.

    All its bits are set, and again after every call.
    """
    # The splits fill the multiprocessors with blocks of at most 16 heads, or are _UNEVEN_SPLITS.
    rows = max(16 * _BLOCKS_PER_SM * gpu.num_sms, _UNEVEN_SPLITS * max_seqs * num_heads)
    return torch.full((rows * _partials(head_dim),), -1, dtype=torch.int32, device=gpu.device)


@dataclass(frozen=True)
class _Layout:
    """How the kernel is compiled for a head_dim and for `group` query heads on each KV head.

    `codes` is the form of a cache in 8 bits.
    """

    dtype: torch.dtype
    codes: str | None
    padded: int  # head_dim
    rows: int  # query heads a block
    warps: int
    slots: int  # tiles of a step's keys or values in a warp's ring
    tile_bytes: int
    step: int  # tokens

    @classmethod
    def of(
        cls,
        dtype: torch.dtype,
        head_dim: int,
        group: int,
        shared_bytes: int,
        codes: str | None = None,
    ) -> "_Layout":
        """For blocks that can have so much shared memory."""
        padded = next(size for size in _head_dims(dtype, codes) if size >= head_dim)
        # More than 8 heads take registers that 256 dimensions do not leave.
        rows = 16 if group > 8 and padded < 256 and dtype != torch.float32 else 8
        step, itemsize = (_CODES_STEP, 1) if codes else (_STEP, dtype.itemsize)
        tile_bytes = -(-padded * itemsize // _PANEL_ROW_BYTES) * _PANEL_ROW_BYTES * step
        warps = 8 if tile_bytes <= 4096 else 4 if tile_bytes <= 8192 else 2
        room_bytes = shared_bytes - _OTHER_SHARED_BYTES
        if codes:  # factors lie beside the ring
            room_bytes = room_bytes * tile_bytes // (tile_bytes + 4 * step)
        ring_bytes = min(_RING_BYTES, room_bytes)
        # At last a warp's sums take the place of its tiles.
        while ring_bytes // (warps * tile_bytes) * tile_bytes < rows * (padded + 4) * 4:
            warps //= 2
        slots = min(8, ring_bytes // (warps * tile_bytes))
        return cls(dtype, codes, padded, rows, warps, slots, tile_bytes, step)

    @property
    def spec(self) -> KernelSpec:
        defines = {
            "DTYPE": DTYPE_NAMES[self.dtype],
            "HEAD_DIM": str(self.padded),
            "ROWS": str(self.rows),
            "NUM_WARPS": str(self.warps),
            "NUM_SLOTS": str(self.slots),
        }
        params = "mpppppppliiiiiiiiiff"
        if self.codes:
            return KernelSpec(
                "decode_attention", params + "p", {**defines, "CODES": CODES[self.codes]}
            )
        return KernelSpec("decode_attention", params, defines)


def _head_dims(dtype: torch.dtype, codes: str | None = None) -> tuple[int, ...]:
    if codes:
        return _CODES_HEAD_DIMS
    return _FP32_HEAD_DIMS if dtype == torch.float32 else _HEAD_DIMS


def decode_attention_spec(
    gpu: Gpu, dtype: torch.dtype, head_dim: int, group: int, codes: str | None = None
) -> KernelSpec:
    """The kernel for `group` query heads on each KV head; `codes` is the form of the cache."""
    return _Layout.of(dtype, head_dim, group, gpu.block_shared_bytes, codes).spec


_SMALL, _LARGE = 99 * 1024, 227 * 1024  # sm_86, sm_89, sm_120; data centers' chips
VARIANTS = [
    dict(_Layout.of(dtype, head_dim, group, shared_bytes).spec.defines)
    for dtype in DTYPE_NAMES
    for head_dim in _head_dims(dtype)
    for group in ((4,) if dtype == torch.float32 or head_dim == 256 else (4, 16))
    for shared_bytes in (_SMALL, _LARGE)
] + [
    dict(_Layout.of(dtype, head_dim, group, shared_bytes, codes).spec.defines)
    for dtype, head_dim, group, shared_bytes, codes in (
        (torch.bfloat16, 128, 4, _SMALL // 2, None),
        (torch.bfloat16, 128, 16, _SMALL // 2, None),
        (torch.bfloat16, 64, 4, _LARGE, "int8"),
        (torch.bfloat16, 128, 16, _SMALL // 2, "int8"),
        (torch.float16, 256, 4, _SMALL, "int8"),
        (torch.float16, 96, 4, _SMALL // 2, "fp8"),
        (torch.bfloat16, 128, 4, _LARGE, "fp8"),
    )
]


def decode_attention(
    gpu: Gpu,
    q: Tensor,
    cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
    out: Tensor,
    workspace: Tensor,
    *,
    window: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    settled: bool = False,
    codes: Codes | None = None,
) -> None:
    """Write softmax(scale q Kᵀ) V to `out` [num_seqs, num_heads, head_dim], T like q and cache.

    q has the shape of `out` and may be the first part of wider rows. The cache is
    [num_blocks, 2 * num_kv_heads, block_size, head_dim], keys' heads first. `context_lens` int32
    [num_seqs] counts each sequence's tokens, the query's own included; 0 gives zeros. Entries of
    `block_tables` int32 [num_seqs, max_blocks] for no visible token are not read as blocks. Of a
    sequence the last `window` tokens are visible (0: all); scores are capped by `softcap` (0: not),
    and `alibi_slopes` fp32 [num_heads] times the distance to the last token is added. `settled`
    says that no kernel since the stream was last idle, or since the current graph began, has
    written anything this one reads but q and the last token's keys and values. With `codes` the
    cache is int8, T not fp32 and head_dim a multiple of 16.
    """
    num_seqs, num_heads, head_dim = q.shape
    num_blocks, kv_rows, block_size, _ = cache.shape
    num_kv_heads, max_blocks, dtype = kv_rows // 2, block_tables.shape[-1], q.dtype
    _check_numbers(cache, num_heads, window, softcap)
    if codes is not None:
        codes.check(cache, dtype, gpu)
    stored, form = (dtype, None) if codes is None else (torch.int8, codes.form)
    _check_query(gpu, q)
    check_tensor("cache", cache, (num_blocks, 2 * num_kv_heads, block_size, head_dim), stored, gpu)
    check_tensor("block_tables", block_tables, (num_seqs, max_blocks), "int32", gpu)
    check_tensor("context_lens", context_lens, (num_seqs,), "int32", gpu)
    check_tensor("alibi_slopes", alibi_slopes, (num_heads,), "float32", gpu)
    check_tensor("out", out, (num_seqs, num_heads, head_dim), dtype, gpu)
    if num_seqs == 0:
        return
    group = num_heads // num_kv_heads
    layout = _Layout.of(dtype, head_dim, group, gpu.block_shared_bytes, form)
    tiles = num_kv_heads * -(-group // layout.rows)
    visible = min(max_blocks * block_size, window + layout.step if window else 2**31)
    splits = _num_splits(gpu, tiles * num_seqs, visible, layout.step * layout.warps)
    blocks = tiles * splits * num_seqs
    if blocks > gpu.num_sms:  # two share a multiprocessor
        layout = _Layout.of(dtype, head_dim, group, gpu.sm_shared_bytes // 2, form)
    size = num_seqs * num_heads * splits * _partials(head_dim)
    if workspace.numel() < size:
        raise ValueError(f"the workspace has {workspace.numel()} numbers, {size} are needed")
    # With a block for each multiprocessor and room for two on each, the blocks of the next kernel
    # come to lie one beside each of these.
    shared_bytes = max(layout.warps * layout.slots * layout.tile_bytes, gpu.sm_shared_bytes // 3)
    rows = tensor_map(gpu, cache.view(-1, head_dim), min(block_size, layout.step))
    gpu.kernel(layout.spec)(
        max(blocks, gpu.num_sms),
        32 * layout.warps,
        rows,
        q,
        cache,
        block_tables,
        context_lens,
        alibi_slopes,
        out,
        workspace,
        q.stride(0),
        num_kv_heads,
        group,
        head_dim,
        block_size.bit_length() - 1,
        max_blocks,
        window,
        int(settled),
        splits,
        num_seqs,
        scale,
        softcap,
        *([] if codes is None else [codes.factors]),
        shared_bytes=shared_bytes,
        num_bytes=2 * out.nbytes,
    )


def _partials(head_dim: int) -> int:
    """Numbers that a split leaves of a head: its sums, and two for every four of them."""
    return head_dim // 4 * 6


def _num_splits(gpu: Gpu, blocks: int, max_tokens: int, block_tokens: int) -> int:
    """How many blocks share a sequence: enough for all multiprocessors, each with work."""
    slots = _BLOCKS_PER_SM * gpu.num_sms
    splits = max(slots // blocks, _UNEVEN_SPLITS if blocks < 2 * slots else 1)
    return max(1, min(splits, _MAX_SPLITS, -(-max_tokens // block_tokens)))


def _check_numbers(cache: Tensor, num_heads: int, window: int, softcap: float) -> None:
    num_blocks, kv_rows, block_size, head_dim = cache.shape
    if cache.dtype not in DTYPE_NAMES and cache.dtype != torch.int8:
        raise ValueError(f"the cache must be bf16, fp16, fp32 or int8, not {cache.dtype}")
    if head_dim % 8 or not 8 <= head_dim <= 256:
        raise ValueError(f"head_dim must be a multiple of 8 up to 256, not {head_dim}")
    if block_size < 4 or block_size & (block_size - 1):
        raise ValueError(f"block_size must be a power of two from 4 on, not {block_size}")
    if kv_rows < 2 or kv_rows % 2 or num_heads % (kv_rows // 2):
        raise ValueError(f"{num_heads} query heads do not divide among {kv_rows} / 2 KV heads")
    if num_blocks * kv_rows * block_size >= 2**31:
        raise ValueError(f"a cache of {list(cache.shape)} has 2^31 rows or more")
    if window < 0 or softcap < 0:
        raise ValueError(f"window and softcap must be 0 or more, not {window} and {softcap}")


def _check_query(gpu: Gpu, q: Tensor) -> None:
    """Rows may lie apart; each is contiguous and aligned."""
    num_seqs, num_heads, head_dim = q.shape
    if num_seqs:
        check_tensor("q", q[0], (num_heads, head_dim), q.dtype, gpu)
    if q.stride(0) * q.element_size() % 16:
        raise ValueError(f"rows of q must be aligned to 16 bytes, not {q.stride(0)} elements apart")
