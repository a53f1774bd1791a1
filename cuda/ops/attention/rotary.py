"""Head norm, rotary embedding and KV cache write: `kernels/attention/rotary.cu`."""

from dataclasses import dataclass

from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.quantized_kv import KVScales, cache_arguments, scheme_macros, scheme_of

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
    `rotary_dim` elements pairs with i + rotary_dim / 2. Queries are then multiplied by the factor
    of their position, query_factors fp32 [max_positions]. positions int32 [n] and slots must be
    valid; this is not checked. With `kv_scales` the cache is int8, the scales are written too, and
    qkv must not be fp32. With int5, queries, keys and values are multiplied by a Hadamard matrix
    after that; then all or none of a head is rotated.

    With `keys_as_values` qkv has no values: they are the keys before norm and rotation. With
    num_kv_heads 0 it has only queries, and the cache is not used. Between queries and keys are
    `num_gate_heads` heads that are not read.
    """
    n, heads, head_dim = qkv.shape
    rotary_dim = 0 if cos_sin is None else cos_sin.shape[1]
    _check_sizes(head_dim, rotary_dim, cache.shape[2])
    parts = 1 if keys_as_values else 2
    if heads != num_heads + num_gate_heads + parts * num_kv_heads:
        raise ValueError(
            f"qkv has {heads} heads, not {num_heads + num_gate_heads} + {parts} * {num_kv_heads}"
        )
    fits, scheme = head_norm_fits(head_dim, rotary_dim), scheme_of(kv_scales)
    if norm is not None and not fits:
        raise ValueError(f"heads of {head_dim} with rotary_dim {rotary_dim} cannot be normalized")
    if kv_scales is not None:
        kv_scales.check(head_dim, qkv.dtype)
        if not fits or (scheme == "int5" and rotary_dim not in (0, head_dim)):
            sizes = f"heads of {head_dim} with rotary_dim {rotary_dim}"
            raise ValueError(f"{sizes} cannot be quantized")
    width = _width(head_dim, rotary_dim)
    heads_per_pass = _THREADS // (head_dim // (2 * width))
    changes_queries = rotary_dim or norm or query_factors is not None or scheme == "int5"
    heads_to_do = 2 * num_kv_heads + (num_heads if changes_queries else 0)
    qkv_bytes = 2 * (num_heads * rotary_dim + 2 * num_kv_heads * head_dim) * qkv.element_size()
    kernel = gpu.kernel(
        "rotary",
        DTYPE=qkv.dtype,
        QK_NORM=norm is not None,
        WIDTH=width,
        **scheme_macros(scheme),
    )
    kernel(
        (n, -(-heads_to_do // (_UNROLL * heads_per_pass))),
        _THREADS,
        num_bytes=n * (qkv_bytes + 4 * rotary_dim),
        qkv=qkv,
        q_norm=norm and norm.query,
        k_norm=norm and norm.key,
        cos_sin=cos_sin,
        positions=positions,
        slot_mapping=slot_mapping,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        eps=norm.eps if norm else 0.0,
        weight_offset=norm.weight_offset if norm else 0.0,
        norm_after=norm is not None and norm.after,
        norm_values=norm is not None and norm.values,
        keys_as_values=keys_as_values,
        num_gate_heads=num_gate_heads,
        query_factors=query_factors,
        **(cache_arguments(cache, kv_scales) if num_kv_heads else {"log2_block_size": 0}),
    )


def _check_sizes(head_dim: int, rotary_dim: int, block_size: int) -> None:
    if head_dim % 8 or not 8 <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"head_dim must be a multiple of 8 up to {MAX_HEAD_DIM}, not {head_dim}")
    if rotary_dim % 2 or not 0 <= rotary_dim <= head_dim:
        raise ValueError(f"rotary_dim must be even and at most {head_dim}, not {rotary_dim}")
    if block_size < 1 or block_size & (block_size - 1):
        raise ValueError(f"block_size must be a power of two, not {block_size}")


def _width(head_dim: int, rotary_dim: int) -> int:
    """Return the elements of one access, which must divide half a head and half of rotary_dim."""
    return next(
        width for width in (8, 4, 2, 1) if head_dim // 2 % width == 0 == rotary_dim // 2 % width
    )
