"""Attention of many queries over a block-paged cache: `kernels/attention/prefill_attention.cu`."""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.quantized_cache import CODES, Codes

_PARAMS = "pppppppp" + "l" + "iiiiiiiii" + "ff"
_MAX_DIM = 256
_DIMS = {"fma": (32, 64, 128, 256), "mma": (32, 64, 80, 96, 128, 256), "wgmma": (64, 128, 256)}
_PATHS = {"fma": "0", "mma": "1", "wgmma": "2"}
# Keys and values of the heads that run side by side should stay in the L2 of a large GPU.
_L2_BYTES = 32 * 2**20
# Less than this for a block, and the `mma` path takes tiles of half the size.
_LARGE_SHARED_BYTES = 160 * 1024


@dataclass(frozen=True)
class Shape:
    """How a path cuts the work up; the same numbers as in the kernel."""

    path: str
    dim: int  # head_dim, rounded up
    biased: bool
    small: bool
    codes: str | None = None  # the form of a cache in 8 bits

    @property
    def consumers(self) -> int:
        """Warpgroups with queries; where registers would not do for three, two."""
        return 2 if self.dim > 128 or (self.dim == 128 and self.biased) else 3

    @property
    def num_rows(self) -> int:
        if self.path == "fma":
            return 16
        if self.path == "wgmma":
            return 64 * self.consumers
        return 64 if self.small or self.dim > 128 else 128

    @property
    def num_threads(self) -> int:
        return 128 * (self.consumers + 1) if self.path == "wgmma" else 128

    @property
    def shared_bytes(self) -> int:
        if self.path == "fma":
            return 4 * ((16 + 2 * 32) * (self.dim + 1) + 16 * 33)
        row_bytes = 128 * ceil(self.dim / 64)
        if self.path == "wgmma":
            num_keys, stages = 64 if self.dim > 128 else 128, 4 if self.dim == 64 else 2
            return 1024 + (self.num_rows + 2 * stages * num_keys) * row_bytes
        num_keys = 32 if self.small or self.dim > 128 else 64
        return (self.num_rows + 2 * 2 * num_keys) * row_bytes

    def defines(self, dtype: torch.dtype) -> dict[str, str]:
        defines = {
            "PATH": _PATHS[self.path],
            "DTYPE": DTYPE_NAMES[dtype],
            "DIM": str(self.dim),
            "BIASED": str(int(self.biased)),
        }
        if self.path == "mma":
            defines["SMALL"] = str(int(self.small))
        if self.codes:
            defines["CODES"] = CODES[self.codes]
        if self.path == "wgmma":
            defines["CONSUMERS"] = str(self.consumers)
        return defines


VARIANTS = [
    Shape(path, dim, biased, small).defines(dtype)
    for path, dims in _DIMS.items()
    for dim in dims
    for dtype in ((torch.float32,) if path == "fma" else (torch.bfloat16, torch.float16))
    for biased in (False, True)
    for small in ((False, True) if path == "mma" else (False,))
] + [
    Shape("mma", dim, biased, small, codes).defines(dtype)
    for dim, biased, small, dtype, codes in (
        (64, True, False, torch.bfloat16, "int8"),
        (80, False, True, torch.float16, "int8"),
        (128, False, False, torch.bfloat16, "fp8"),
        (256, True, True, torch.float16, "fp8"),
    )
]


def prefill_attention_shape(
    gpu: Gpu,
    dtype: torch.dtype,
    head_dim: int,
    biased: bool,
    path: str = "auto",
    codes: str | None = None,
) -> Shape:
    """The path and its tiles; fp32 and `codes` have one path, `wgmma` needs sm_90a."""
    if head_dim % 8 or not 8 <= head_dim <= _MAX_DIM:
        raise ValueError(f"head_dim must be a multiple of 8 up to {_MAX_DIM}, not {head_dim}")
    if path not in ("auto", "mma", "wgmma"):
        raise ValueError(f"path must be auto, mma or wgmma, not {path}")
    if path == "wgmma" and gpu.arch != "sm_90a":
        raise ValueError(f"the wgmma path needs sm_90a, not {gpu.arch}")
    if dtype == torch.float32:
        path = "fma"
    elif codes:
        path = "mma"
    elif path == "auto":
        path = "wgmma" if gpu.arch == "sm_90a" else "mma"
    dim = next(dim for dim in _DIMS[path] if dim >= head_dim)
    return Shape(path, dim, biased, gpu.block_shared_bytes < _LARGE_SHARED_BYTES, codes)


def prefill_attention_spec(shape: Shape, dtype: torch.dtype) -> KernelSpec:
    params = _PARAMS + "p" if shape.codes else _PARAMS
    return KernelSpec("prefill_attention", params, shape.defines(dtype))


def prefill_attention(
    gpu: Gpu,
    q: Tensor,
    cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    max_num_tokens: int,
    scale: float,
    out: Tensor,
    *,
    window: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    prefix_lens: Tensor | None = None,
    path: str = "auto",
    codes: Codes | None = None,
) -> None:
    """Write to out [num_tokens, num_heads, head_dim] the attention of q over the cache.

    q has out's shape; its rows may lie further apart than they are long. Rows
    query_starts[i] … query_starts[i + 1] - 1 are the last tokens of sequence i, whose
    context_lens[i] tokens are all in cache [num_blocks, 2 * num_kv_heads, block_size, head_dim]
    already, in the blocks of block_tables[i]; int32 all. No sequence has more than
    `max_num_tokens` rows.

    A query sees the keys up to its own position, and those before prefix_lens[i]; with a
    `window`, of these only keys > position - window. Scores are scaled, then capped by `softcap`
    (0: not), then lowered by alibi_slopes [num_heads] (fp32) for each position of distance.
    With `codes` the cache is int8, q not fp32 and head_dim a multiple of 16.
    """
    num_tokens, num_heads, head_dim = out.shape
    num_blocks, twice_heads, block_size, _ = cache.shape
    num_kv_heads, num_seqs = twice_heads // 2, len(context_lens)
    dtype = cache.dtype if codes is None else q.dtype
    _check_queries(q, out, dtype, gpu)
    if dtype not in DTYPE_NAMES:
        raise ValueError(f"cache must be bf16, fp16 or fp32, not {dtype}")
    check_tensor(
        "cache",
        cache,
        (num_blocks, 2 * num_kv_heads, block_size, head_dim),
        dtype if codes is None else torch.int8,
        gpu,
    )
    if codes is not None:
        codes.check(cache, dtype, gpu)
    check_tensor("block_tables", block_tables, (num_seqs, block_tables.shape[1]), "int32", gpu)
    check_tensor("query_starts", query_starts, (num_seqs + 1,), "int32", gpu)
    check_tensor("context_lens", context_lens, (num_seqs,), "int32", gpu)
    check_tensor("prefix_lens", prefix_lens, (num_seqs,), "int32", gpu)
    check_tensor("alibi_slopes", alibi_slopes, (num_heads,), "float32", gpu)
    if num_kv_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} heads cannot share {num_kv_heads} key heads")
    if block_size < 4 or block_size & (block_size - 1):
        raise ValueError(f"block_size must be a power of two from 4 on, not {block_size}")
    if num_blocks * twice_heads * block_size >= 2**31:
        raise ValueError("the cache must have fewer than 2^31 rows")
    if window < 0 or softcap < 0 or scale <= 0:
        raise ValueError(f"window {window}, softcap {softcap} and scale {scale} must be positive")
    if num_tokens == 0 or num_seqs == 0:
        return
    biased = softcap > 0 or alibi_slopes is not None
    form = None if codes is None else codes.form
    shape = prefill_attention_shape(gpu, dtype, head_dim, biased, path, form)
    slots = min(
        num_seqs * ceil(max_num_tokens / shape.num_rows), num_tokens // shape.num_rows + num_seqs
    )
    if slots == 0:
        return
    together = _kv_heads_together(num_kv_heads, 2 * max_num_tokens * head_dim * cache.itemsize)
    gpu.kernel(prefill_attention_spec(shape, dtype))(
        slots * num_heads,
        shape.num_threads,
        q,
        cache,
        block_tables,
        query_starts,
        context_lens,
        prefix_lens,
        alibi_slopes,
        out,
        q.stride(0),
        num_seqs,
        block_tables.shape[1],
        num_heads,
        num_kv_heads,
        head_dim,
        block_size.bit_length() - 1,
        window,
        slots,
        together * (num_heads // num_kv_heads),
        scale,
        softcap,
        *([] if codes is None else [codes.factors]),
        shared_bytes=shape.shared_bytes,
        num_bytes=2 * out.nbytes,
    )


def _check_queries(q: Tensor, out: Tensor, dtype: torch.dtype, gpu: Gpu) -> None:
    check_tensor("out", out, tuple(out.shape), dtype, gpu)
    if q.shape != out.shape or q.dtype != dtype or q.device != gpu.device:
        raise ValueError(
            f"q must be {dtype} {list(out.shape)} on {gpu.device}, "
            f"not {q.dtype} {list(q.shape)} on {q.device}"
        )
    if q.numel() == 0:
        return
    _, num_heads, head_dim = q.shape
    row, *inner = q.stride()
    if inner != [head_dim, 1] or row < num_heads * head_dim:
        raise ValueError(f"q's rows must be contiguous, not with strides {q.stride()}")
    if q.data_ptr() % 16 or row * q.itemsize % 16:
        raise ValueError("q's rows must be aligned to 16 bytes")


def _kv_heads_together(num_kv_heads: int, head_bytes: int) -> int:
    """The largest divisor of num_kv_heads whose keys and values fit the L2, at least 1."""
    return max(
        count
        for count in range(1, num_kv_heads + 1)
        if num_kv_heads % count == 0 and (count == 1 or count * head_bytes <= _L2_BYTES)
    )
