"""Gate and up matrices of experts by bulk copies: `kernels/moe/bulk_gate_up.cu`."""

from typing import Any

import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.expert_matrices import ExpertMatrices
from swiftchat.cuda.packed_layout import (
    PACKED_SCHEMES,
    has_zero_points,
    packing_fits,
    padded_columns,
    tile_bytes,
)

_THREADS = 128
_ROWS = 8  # of gate and of up matrices in a block


def _shared_bytes(matrices: ExpertMatrices) -> int:
    """Return the dynamic shared memory of a block: weights, activations and their sums."""
    scheme, group_size = matrices.scheme, matrices.group_size
    is_plain = scheme == "PLAIN"
    columns = matrices.columns if is_plain else padded_columns(scheme, matrices.columns)
    row_bytes = (columns * 2 // 64 | 1) * 64  # of activations, and of rows that are not packed
    if is_plain:
        return (2 * _ROWS + 1) * row_bytes
    tiles = 2 * columns // PACKED_SCHEMES[scheme].tile_columns
    sums_bytes = columns // 32 * 4 if has_zero_points(scheme, group_size) else 0
    return tiles * tile_bytes(scheme, group_size) + row_bytes + sums_bytes


def bulk_gate_up_fits(gpu: Gpu, matrices: ExpertMatrices, dtype: torch.dtype, n: int) -> bool:
    """Return whether the kernel is best for n rows of these matrices.

    Two of its blocks must fit on a multiprocessor. Matrices that are not packed are read faster by
    `expert_gate_up.cu` if there are several rows.
    """
    columns, scheme = matrices.columns, matrices.scheme
    if scheme == "PLAIN":
        fits = columns % 32 == 0 and n == 1
    else:
        fits = packing_fits(scheme, columns, matrices.group_size)
    return (
        fits
        and gpu.has_copy_engine
        and dtype.itemsize == 2
        and 2 * (_shared_bytes(matrices) + 2048) <= gpu.sm_shared_bytes
    )


def bulk_gate_up(
    gpu: Gpu, matrices: ExpertMatrices, activation: str, arguments: dict[str, Any]
) -> None:
    """Launch the kernel with the arguments of `expert_gate_up`.

    The matrices must fit: see `bulk_gate_up_fits`.
    """
    x, (n, chosen, expert_size) = arguments["x"], arguments["out"].shape
    kernel = gpu.kernel(
        "bulk_gate_up", DTYPE=x.dtype, ACTIVATION=activation.upper(), **matrices.macros
    )
    kernel(
        (chosen * -(-expert_size // _ROWS), n),
        _THREADS,
        shared_bytes=_shared_bytes(matrices),
        scales=matrices.scales,
        **arguments,
    )
