"""Low-rank changes of decode rows by adapters: `kernels/linear/low_rank_*.cu`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.ops.linear.linear import Norm

RANK_STEP = 8  # ranks are padded to a multiple of this
_THREADS = 256
_HEADER, _PART = 3, 5


@dataclass(frozen=True)
class Part:
    """B [columns, rank] adds to the columns of the output from `first` on."""

    first: int
    b: Tensor


def _shrink_spec(dtype: str, *, norm: bool) -> KernelSpec:
    arguments = (
        "pointer table, pointer sets, pointer x, pointer norm_weight, pointer narrow, int k, "
        "int max_rank, int entry, float eps, float weight_offset"
    )
    return KernelSpec("low_rank_shrink", arguments, {"DTYPE": dtype, "NORM": str(int(norm))})


def _expand_spec(dtype: str) -> KernelSpec:
    arguments = (
        "pointer table, pointer sets, pointer bias, pointer narrow, pointer out, int m, "
        "int max_rank, int entry"
    )
    return KernelSpec("low_rank_expand", arguments, {"DTYPE": dtype})


VARIANTS = [
    *(_shrink_spec(dtype, norm=norm) for dtype in DTYPE_NAMES.values() for norm in (False, True)),
    *(_expand_spec(dtype) for dtype in DTYPE_NAMES.values()),
]


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
    check_tensor("x", x, (n, k), torch.float32 if norm else dtype, gpu)
    check_tensor("table", table, tuple(table.shape), torch.int64, gpu)
    check_tensor("sets", sets, (n,), torch.int32, gpu)
    check_tensor("narrow", narrow, (n, narrow.shape[1]), torch.float32, gpu)
    if norm:
        check_tensor("norm.weight", norm.weight, (k,), dtype, gpu)
    gpu.kernel(_shrink_spec(DTYPE_NAMES[dtype], norm=norm is not None))(
        (narrow.shape[1], n),
        _THREADS,
        num_bytes=narrow.shape[1] * k * dtype.itemsize,
        table=table,
        sets=sets,
        x=x,
        norm_weight=norm.weight if norm else None,
        narrow=narrow,
        k=k,
        max_rank=narrow.shape[1],
        entry=table.shape[1],
        eps=norm.eps if norm else 0.0,
        weight_offset=norm.weight_offset if norm else 0.0,
    )


def low_rank_expand(
    gpu: Gpu, table: Tensor, sets: Tensor, bias: Tensor | None, narrow: Tensor, out: Tensor
) -> None:
    """Write bias [m] + narrow · Bᵀ of each row's set to out [n, m]; see `low_rank_shrink`."""
    n, m = out.shape
    check_tensor("table", table, tuple(table.shape), torch.int64, gpu)
    check_tensor("sets", sets, (n,), torch.int32, gpu)
    check_tensor("bias", bias, (m,), out.dtype, gpu)
    check_tensor("narrow", narrow, (n, narrow.shape[1]), torch.float32, gpu)
    check_tensor("out", out, (n, m), out.dtype, gpu)
    gpu.kernel(_expand_spec(DTYPE_NAMES[out.dtype]))(
        (-(-m // _THREADS), n),
        _THREADS,
        num_bytes=out.nbytes + narrow.shape[1] * m * out.dtype.itemsize,
        table=table,
        sets=sets,
        bias=bias,
        narrow=narrow,
        out=out,
        m=m,
        max_rank=narrow.shape[1],
        entry=table.shape[1],
    )
