"""The changes of decode rows by adapters as torch calls; see `kernels.py`."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.ops.linear.row_changes import SENTINEL, make_ready
from tests.support.emulated.memory import matrix


def add_low_rank(a: Any, x: Tensor, y: Tensor) -> None:
    """Add B · (A · x) of each row's set of adapters to y; use one buffer, make the other ready."""
    assert (a.narrow.view(torch.int32) == SENTINEL).all()
    a.narrow.zero_()
    make_ready(a.next_narrow)
    k = x.shape[1]
    for row, address, rank in _sets(a):
        assert rank <= a.max_rank
        _add_parts(a, row, x[row] @ matrix(address, rank, k, k).T, y)


def _shrink(a: Any) -> None:
    x = a.x
    if a.defines["NORM"] == "1":
        scale = (x.square().mean(-1, keepdim=True) + a.eps).rsqrt()
        x = x * scale * (a.norm_weight + a.weight_offset)
    for row, address, rank in _sets(a):
        assert rank <= a.max_rank
        a.narrow[row, :rank] = x[row] @ matrix(address, rank, a.k, a.k).T


def _expand(a: Any) -> None:
    a.out.zero_()
    if a.bias is not None:
        a.out += a.bias
    for row, _, rank in _sets(a):
        _add_parts(a, row, a.narrow[row, :rank], a.out)


def _sets(a: Any) -> Iterator[tuple[int, int, int]]:
    """Return the rows with a set that changes the matrix, the address of its A, and its rank."""
    for row, number in enumerate(a.sets.tolist()):
        address, rank = a.table[number, :2].tolist() if number >= 0 else (0, 0)
        if rank:
            yield row, address, rank


def _add_parts(a: Any, row: int, narrow: Tensor, out: Tensor) -> None:
    """Add B · narrow of each part of a row's set; see `low_rank.table_entry`."""
    header, parts = a.table[int(a.sets[row])].split([3, a.table.shape[1] - 3])
    for first, size, rank, start, address in parts.view(-1, 5)[: int(header[2])].tolist():
        change = matrix(address, size, rank, rank) @ narrow[start : start + rank]
        out[row, first : first + size] += change


LOW_RANK: Mapping[str, Callable[[Any], None]] = MappingProxyType(
    {"low_rank_shrink": _shrink, "low_rank_expand": _expand}
)
