"""Normalize and rotate heads and store them in the KV cache: `kernels/attention/rotary.cu`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.quantized_cache import CODES, Codes

_THREADS, _UNROLL = 128, 4
_LAYOUTS = ("half", "interleaved")

VARIANTS = [
    {"DTYPE": name, "INTERLEAVED": interleaved, "QK_NORM": norm, "WIDTH": width}
    for name in DTYPE_NAMES.values()
    for interleaved, norm in (("0", "0"), ("1", "0"), ("0", "1"))
    for width in ("8", "4", "2", "1")
] + [
    {"DTYPE": name, "INTERLEAVED": "0", "QK_NORM": norm, "WIDTH": "8", "CODES": CODES[form]}
    for name, norm, form in (("__nv_bfloat16", "0", "int8"), ("__half", "1", "fp8"))
]


@dataclass(frozen=True)
class HeadNorm:
    """RMSNorm of every query and key head; weights T [head_dim], to which `offset` is added."""

    query: Tensor
    key: Tensor
    eps: float
    offset: float = 0.0


def rotary_spec(
    dtype: torch.dtype,
    head_dim: int,
    rotary_dim: int,
    layout: str = "half",
    normed: bool = False,
    codes: str | None = None,
) -> KernelSpec:
    defines = {
        "DTYPE": DTYPE_NAMES[dtype],
        "INTERLEAVED": str(_LAYOUTS.index(layout)),
        "QK_NORM": str(int(normed)),
        "WIDTH": str(_width(head_dim, rotary_dim)),
    }
    params = "ppppppppiiiiiff"
    if codes:
        return KernelSpec("rotary", params + "p", {**defines, "CODES": CODES[codes]})
    return KernelSpec("rotary", params, defines)


def head_norm_fits(head_dim: int, rotary_dim: int) -> bool:
    """Whether `rotary` can normalize heads of this size, or keep them in codes."""
    lanes = head_dim // (2 * _width(head_dim, rotary_dim))
    return lanes <= 32 and lanes & (lanes - 1) == 0


def rotary(
    gpu: Gpu,
    qkv: Tensor,
    cos_sin: Tensor | None,
    positions: Tensor,
    slots: Tensor,
    cache: Tensor,
    num_heads: int,
    num_kv_heads: int,
    *,
    layout: str = "half",
    rotary_dim: int | None = None,
    positions2: Tensor | None = None,
    norm: HeadNorm | None = None,
    codes: Codes | None = None,
) -> None:
    """Normalize, with `norm`, and turn queries and keys; store keys and values in the cache.

    qkv is T [n, num_heads + 2 * num_kv_heads, head_dim]: queries change in place, keys do not. The
    cache is T [num_blocks, 2 * num_kv_heads, block_size, head_dim], slots int32 [n]; a token
    with a slot below 0 is not stored. cos_sin is fp32 [max_positions, rotary_dim], in a row the
    cosines of the angles, then their sines; None (rotary_dim 0) only stores. Element i of a
    head's first `rotary_dim` pairs with i + rotary_dim / 2 (`half`) or 2i with 2i + 1
    (`interleaved`). With positions2, each half of a head is turned so, the second by these.
    positions, int32 [n], and slots are inside table and cache; that is not checked. With `codes`
    the cache is int8, and their factors are written too; qkv is not fp32.
    """
    n, heads, head_dim = qkv.shape
    num_blocks, _, block_size, _ = cache.shape
    if rotary_dim is None:
        rotary_dim = 0 if cos_sin is None else cos_sin.shape[1]
    _check_sizes(head_dim, rotary_dim, block_size, layout, positions2 is not None)
    if heads != num_heads + 2 * num_kv_heads:
        raise ValueError(f"qkv has {heads} heads, not {num_heads} + 2 * {num_kv_heads}")
    if (cos_sin is None) != (rotary_dim == 0):
        raise ValueError(f"rotary_dim {rotary_dim} and cos_sin do not fit each other")
    check_tensor("qkv", qkv, (n, heads, head_dim), qkv.dtype, gpu)
    if cos_sin is not None:
        check_tensor("cos_sin", cos_sin, (cos_sin.shape[0], rotary_dim), "float32", gpu)
    if norm is not None:
        if not head_norm_fits(head_dim, rotary_dim):
            raise ValueError(f"heads of {head_dim}, {rotary_dim} turned, cannot be normalized")
        check_tensor("norm.query", norm.query, (head_dim,), qkv.dtype, gpu)
        check_tensor("norm.key", norm.key, (head_dim,), qkv.dtype, gpu)
    check_tensor("positions", positions, (n,), "int32", gpu)
    check_tensor("positions2", positions2, (n,), "int32", gpu)
    check_tensor("slots", slots, (n,), "int32", gpu)
    shape = (num_blocks, 2 * num_kv_heads, block_size, head_dim)
    check_tensor("cache", cache, shape, qkv.dtype if codes is None else torch.int8, gpu)
    if codes is not None:
        codes.check(cache, qkv.dtype, gpu)
        if not head_norm_fits(head_dim, rotary_dim):
            raise ValueError(f"heads of {head_dim}, {rotary_dim} turned, cannot be kept in codes")
    if n == 0:
        return
    groups = _THREADS // (head_dim // (2 * _width(head_dim, rotary_dim)))
    wanted = heads if rotary_dim or norm else 2 * num_kv_heads
    turned = rotary_dim * (1 if positions2 is None else 2)
    moved = 2 * (num_heads * turned + 2 * num_kv_heads * head_dim) * qkv.element_size()
    form = None if codes is None else codes.form
    gpu.kernel(rotary_spec(qkv.dtype, head_dim, rotary_dim, layout, norm is not None, form))(
        (n, -(-wanted // (_UNROLL * groups))),
        _THREADS,
        qkv,
        norm and norm.query,
        norm and norm.key,
        cos_sin,
        positions,
        positions2,
        slots,
        cache,
        num_heads,
        num_kv_heads,
        head_dim,
        rotary_dim,
        block_size.bit_length() - 1,
        norm.eps if norm else 0.0,
        norm.offset if norm else 0.0,
        *([] if codes is None else [codes.factors]),
        num_bytes=n * (moved + 4 * turned),
    )


def _check_sizes(
    head_dim: int, rotary_dim: int, block_size: int, layout: str, two_stretches: bool
) -> None:
    if layout not in _LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(_LAYOUTS)}, not {layout!r}")
    if head_dim % 8 or not 8 <= head_dim <= 256:
        raise ValueError(f"head_dim must be a multiple of 8 up to 256, not {head_dim}")
    if rotary_dim % 2 or not 0 <= rotary_dim <= head_dim:
        raise ValueError(f"rotary_dim must be even and at most {head_dim}, not {rotary_dim}")
    if two_stretches and (layout != "half" or 2 * rotary_dim != head_dim):
        raise ValueError("positions2 needs the half layout and rotary_dim = head_dim / 2")
    if block_size < 1 or block_size & (block_size - 1):
        raise ValueError(f"the cache's block size must be a power of two, not {block_size}")


def _width(head_dim: int, rotary_dim: int) -> int:
    """Elements of one access: pairs that are half a stretch apart must both be whole ones."""
    return next(
        width for width in (8, 4, 2, 1) if head_dim // 2 % width == 0 == rotary_dim // 2 % width
    )
