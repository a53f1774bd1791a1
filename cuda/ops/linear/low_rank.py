"""Low-rank changes of decode rows by adapters: `kernels/linear/low_rank_*.cu`."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.linear import Norm

RANK_STEP = 8  # ranks are padded to a multiple of this
_THREADS = 256
_HEADER, _PART = 3, 5


@dataclass(frozen=True)
class Part:
    """B [columns, rank] adds to the columns of the output from `first` on."""

    first: int
    b: Tensor


def entry_size(max_parts: int) -> int:
    """Return the number of int64 elements that describe a set with so many parts."""
    return _HEADER + _PART * max_parts


def table_entry(a: Tensor | None, parts: Sequence[Part], max_parts: int) -> list[int]:
    """Return the entry of a set: A [rank, k] of all parts, one below the other, and the parts.

    A None is an empty entry. The tensors must stay where they are.
    """
    if a is None:
        return [0] * entry_size(max_parts)
    found, start = [a.data_ptr(), len(a), len(parts)], 0
    for part in parts:
        found += [part.first, len(part.b), part.b.shape[1], start, part.b.data_ptr()]
        start += part.b.shape[1]
    return found + [0] * (entry_size(max_parts) - len(found))


def low_rank_shrink(
    gpu: Gpu, x: Tensor, table: Tensor, sets: Tensor, narrow: Tensor, *, norm: Norm | None = None
) -> None:
    """Write x [n, k] · Aᵀ of each row's set to narrow, fp32 [n, max_rank].

    `table` int64 [num_sets, entry] has rows of `table_entry`; `sets` int32 [n], below 0 for no set.
    x is fp32 with `norm`.
    """
    n, k = x.shape
    dtype = x.dtype if norm is None else norm.weight.dtype
    if k % 8:
        raise ValueError(f"low_rank_shrink takes multiples of 8 columns, not {k}")
    gpu.kernel("low_rank_shrink", DTYPE=dtype, NORM=norm is not None)(
        (narrow.shape[1], n),
        _THREADS,
        num_bytes=narrow.shape[1] * k * dtype.itemsize,
        table=table,
        sets=sets,
        x=x,
        norm_weight=norm.weight if norm else None,
        narrow=narrow,
        eps=norm.eps if norm else 0.0,
        weight_offset=norm.weight_offset if norm else 0.0,
    )


def low_rank_expand(
    gpu: Gpu, table: Tensor, sets: Tensor, bias: Tensor | None, narrow: Tensor, out: Tensor
) -> None:
    """Write bias [m] + narrow · Bᵀ of each row's set to out [n, m]; see `low_rank_shrink`."""
    n, m = out.shape
    gpu.kernel("low_rank_expand", DTYPE=out.dtype)(
        (-(-m // _THREADS), n),
        _THREADS,
        num_bytes=out.nbytes + narrow.shape[1] * m * out.dtype.itemsize,
        table=table,
        sets=sets,
        bias=bias,
        narrow=narrow,
        out=out,
        m=m,
    )
