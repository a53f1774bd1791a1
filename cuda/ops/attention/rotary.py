"""Head norm, rotary embedding and KV cache write: `kernels/attention/rotary.cu`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.quantized_kv import (
    KV_SCHEMES,
    KVScales,
    cache_arguments,
    scheme_of,
    scheme_parameters,
)

MAX_HEAD_DIM = 512  # as of the kernels of attention
_THREADS, _UNROLL = 128, 4


@dataclass(frozen=True)
class HeadNorm:
    """RMSNorm of every query and key head; weights T [head_dim], plus `weight_offset`.

    Before the rotation, or `after` it (HunYuan). With `values` also of every value head, without
    weights (Gemma 4).
    """

    query: Tensor
    key: Tensor
    eps: float
    weight_offset: float = 0.0
    after: bool = False
    values: bool = False


def _spec(dtype: str, normed: bool, width: int, kv_scheme: str | None = None) -> KernelSpec:
    defines = {"DTYPE": dtype, "QK_NORM": str(int(normed)), "WIDTH": str(width)}
    arguments = (
        "pointer qkv, pointer q_norm, pointer k_norm, pointer cos_sin, pointer positions, "
        "pointer positions2, pointer slot_mapping, pointer cache, int num_heads, "
        "int num_kv_heads, int head_dim, int rotary_dim, int log2_block_size, float eps, "
        "float weight_offset, int norm_after, int norm_values, int keys_as_values, "
        "int num_gate_heads, "
        "pointer query_factors"
    )
    if kv_scheme:
        defines["KV_SCHEME"] = KV_SCHEMES[kv_scheme]
    arguments += scheme_parameters(kv_scheme)
    return KernelSpec("rotary", arguments, defines)


VARIANTS = [
    *(
        _spec(dtype, normed, width)
        for dtype in DTYPE_NAMES.values()
        for normed in (False, True)
        for width in (8, 4, 2, 1)
    ),
    _spec("__nv_bfloat16", False, 8, "int8"),
    _spec("__half", True, 8, "fp8"),
    _spec("__nv_bfloat16", True, 8, "int5"),
    _spec("__half", False, 8, "int5"),
]


def head_norm_fits(head_dim: int, rotary_dim: int) -> bool:
    """Return whether `rotary` can normalize or quantize heads of this size."""
    threads = head_dim // (2 * _width(head_dim, rotary_dim))
    return threads <= 32 and threads & (threads - 1) == 0


def rotary(
    gpu: Gpu,
    qkv: Tensor,
    cache: Tensor,
    *,
    cos_sin: Tensor | None,
    positions: Tensor,
    slot_mapping: Tensor,
    num_heads: int,
    num_kv_heads: int,
    positions2: Tensor | None = None,
    norm: HeadNorm | None = None,
    query_factors: Tensor | None = None,
    kv_scales: KVScales | None = None,
    keys_as_values: bool = False,
    num_gate_heads: int = 0,
) -> None:
    """Normalize (with `norm`) and rotate queries and keys; store keys and values in the cache.

    qkv is T [n, num_heads + 2 * num_kv_heads, head_dim]; only the queries change, in place. The
    cache is T [num_blocks, 2 * num_kv_heads, block_size, head_dim], slot_mapping int32 [n]; a
    token with a slot below 0 is not stored. cos_sin is fp32 [max_positions, rotary_dim]: in each
    row the cosines of the angles, then the sines. None means no rotation. Element i of the first
    `rotary_dim` elements pairs with i + rotary_dim / 2. With positions2, both halves of a head are
    rotated like this, the second by positions2. Queries are then multiplied by the factor of their
    position, query_factors fp32 [max_positions]. positions int32 [n] and slots must be valid; this
    is not checked. With `kv_scales` the cache is int8, the scales are written too, and qkv must not
    be fp32. With int5, queries, keys and values are multiplied by a Hadamard matrix after that;
    then all or none of a head is rotated, and positions2 is None.

    With `keys_as_values` qkv has no values: they are the keys before norm and rotation. With
    num_kv_heads 0 it has only queries, and the cache is not used. Between queries and keys are
    `num_gate_heads` heads that are not read.
    """
    n, heads, head_dim = qkv.shape
    rotary_dim = 0 if cos_sin is None else cos_sin.shape[1]
    _check_sizes(head_dim, rotary_dim, cache.shape[2], positions2 is not None)
    parts = 1 if keys_as_values else 2
    if heads != num_heads + num_gate_heads + parts * num_kv_heads:
        raise ValueError(
            f"qkv has {heads} heads, not {num_heads + num_gate_heads} + {parts} * {num_kv_heads}"
        )
    check_tensor("qkv", qkv, (n, heads, head_dim), qkv.dtype, gpu)
    _check_angles(gpu, n, cos_sin, rotary_dim, positions, positions2)
    _check_norm(gpu, norm, head_dim, rotary_dim, qkv.dtype)
    if num_kv_heads:
        _check_cache(gpu, cache, kv_scales, (num_kv_heads, head_dim, rotary_dim), qkv.dtype)
    check_tensor("slot_mapping", slot_mapping, (n,), "int32", gpu)
    if query_factors is not None:
        check_tensor("query_factors", query_factors, (len(query_factors),), "float32", gpu)
    if n == 0:
        return
    width = _width(head_dim, rotary_dim)
    spec = _spec(DTYPE_NAMES[qkv.dtype], norm is not None, width, scheme_of(kv_scales))
    heads_per_pass = _THREADS // (head_dim // (2 * width))
    is_scaled, is_packed = query_factors is not None, scheme_of(kv_scales) == "int5"
    changes_queries = rotary_dim or norm or is_scaled or is_packed
    heads_to_do = 2 * num_kv_heads + (num_heads if changes_queries else 0)
    if heads_to_do == 0:
        return
    rotated = rotary_dim * (1 if positions2 is None else 2)
    qkv_bytes = 2 * (num_heads * rotated + 2 * num_kv_heads * head_dim) * qkv.element_size()
    gpu.kernel(spec)(
        (n, -(-heads_to_do // (_UNROLL * heads_per_pass))),
        _THREADS,
        num_bytes=n * (qkv_bytes + 4 * rotated),
        qkv=qkv,
        q_norm=norm and norm.query,
        k_norm=norm and norm.key,
        cos_sin=cos_sin,
        positions=positions,
        positions2=positions2,
        slot_mapping=slot_mapping,
        num_heads=num_heads,
        rotary_dim=rotary_dim,
        eps=norm.eps if norm else 0.0,
        weight_offset=norm.weight_offset if norm else 0.0,
        norm_after=int(norm is not None and norm.after),
        norm_values=int(norm is not None and norm.values),
        keys_as_values=int(keys_as_values),
        num_gate_heads=num_gate_heads,
        query_factors=query_factors,
        **{
            **cache_arguments(cache, kv_scales),
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
        },
    )


def _check_sizes(head_dim: int, rotary_dim: int, block_size: int, two_positions: bool) -> None:
    if head_dim % 8 or not 8 <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"head_dim must be a multiple of 8 up to {MAX_HEAD_DIM}, not {head_dim}")
    if rotary_dim % 2 or not 0 <= rotary_dim <= head_dim:
        raise ValueError(f"rotary_dim must be even and at most {head_dim}, not {rotary_dim}")
    if two_positions and 2 * rotary_dim != head_dim:
        raise ValueError(f"positions2 needs rotary_dim {head_dim} / 2, not {rotary_dim}")
    if block_size < 1 or block_size & (block_size - 1):
        raise ValueError(f"block_size must be a power of two, not {block_size}")


def _check_angles(
    gpu: Gpu,
    n: int,
    cos_sin: Tensor | None,
    rotary_dim: int,
    positions: Tensor,
    positions2: Tensor | None,
) -> None:
    if cos_sin is not None:
        check_tensor("cos_sin", cos_sin, (cos_sin.shape[0], rotary_dim), "float32", gpu)
    check_tensor("positions", positions, (n,), "int32", gpu)
    check_tensor("positions2", positions2, (n,), "int32", gpu)


def _check_norm(
    gpu: Gpu, norm: HeadNorm | None, head_dim: int, rotary_dim: int, dtype: torch.dtype
) -> None:
    if norm is None:
        return
    if not head_norm_fits(head_dim, rotary_dim):
        raise ValueError(f"heads of {head_dim} with rotary_dim {rotary_dim} cannot be normalized")
    check_tensor("norm.query", norm.query, (head_dim,), dtype, gpu)
    check_tensor("norm.key", norm.key, (head_dim,), dtype, gpu)


def _check_cache(
    gpu: Gpu,
    cache: Tensor,
    kv_scales: KVScales | None,
    sizes: tuple[int, int, int],
    dtype: torch.dtype,
) -> None:
    num_kv_heads, head_dim, rotary_dim = sizes
    row_size = head_dim // 2 if scheme_of(kv_scales) == "int5" else head_dim
    shape = (cache.shape[0], 2 * num_kv_heads, cache.shape[2], row_size)
    check_tensor("cache", cache, shape, dtype if kv_scales is None else torch.int8, gpu)
    if kv_scales is None:
        return
    kv_scales.check(cache, dtype, gpu)
    fits = head_norm_fits(head_dim, rotary_dim)
    if not fits or (kv_scales.scheme == "int5" and rotary_dim not in (0, head_dim)):
        raise ValueError(f"heads of {head_dim} with rotary_dim {rotary_dim} cannot be quantized")


def _width(head_dim: int, rotary_dim: int) -> int:
    """Return the elements of one access, which must divide half a head and half of rotary_dim."""
    return next(
        width for width in (8, 4, 2, 1) if head_dim // 2 % width == 0 == rotary_dim // 2 % width
    )
