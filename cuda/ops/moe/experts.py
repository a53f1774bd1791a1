"""MLPs of experts for a few tokens: `kernels/moe/expert_*.cu` and `packed_gate_up.cu`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.bulk_gate_up import bulk_gate_up, bulk_gate_up_fits
from swiftchat.cuda.ops.moe.expert_matrices import ExpertMatrices
from swiftchat.cuda.packed_layout import PACKED_SCHEMES, has_zero_points
from swiftchat.cuda.signature import Macro

MAX_CHOSEN = 32  # experts of a token
_PLAIN_THREADS, _PLAIN_ROWS = 256, 16  # of a block of expert_gate_up, for PLAIN matrices


@dataclass(frozen=True)
class Tiling:
    """How a kernel divides its work: its warps and slots of expert_stream.cuh.

    `blocks_per_sm` blocks compute a token; 0: one for each unit.
    """

    warps: int
    depth: int
    run: int
    blocks_per_sm: int

    @property
    def macros(self) -> dict[str, Macro]:
        return {"NUM_WARPS": self.warps, "NUM_SLOTS": self.depth, "RUN_STEPS": self.run}

    def blocks(self, gpu: Gpu, units: int, n: int) -> int:
        """Return the number of blocks of a token."""
        if self.blocks_per_sm == 0:
            return units
        most = max(1, gpu.num_sms * self.blocks_per_sm // n)
        return -(-units // -(-units // most))


_ROWS = 8  # of a tile
_GATE, _GATE_SCALED, DOWN = Tiling(4, 6, 1, 0), Tiling(4, 4, 1, 0), Tiling(8, 2, 2, 3)
DOWN_OF_ONE = Tiling(8, 4, 2, 3)  # of one row: twice the copies in flight


def gate_tiling(scheme: str) -> Tiling:
    """Return the tiling of `packed_gate_up` for matrices of this scheme."""
    return _GATE_SCALED if PACKED_SCHEMES[scheme].scales_elements else _GATE


def _down_tiling(gpu: Gpu, matrices: ExpertMatrices, shape: torch.Size, itemsize: int) -> Tiling:
    """Return the tiling for activations of this shape."""
    deep = _shared_bytes(matrices, DOWN_OF_ONE, shape[1], itemsize) + 4096
    is_deep = matrices.scheme == "PLAIN" and shape[0] == 1 and deep <= gpu.block_shared_bytes
    return DOWN_OF_ONE if is_deep else DOWN


def _shared_bytes(matrices: ExpertMatrices, tiling: Tiling, num_rows: int, itemsize: int) -> int:
    """Return the shared memory of a block: its slots, and `num_rows` activation rows."""
    is_plain = matrices.scheme == "PLAIN"
    columns = (
        64 // itemsize if is_plain else PACKED_SCHEMES[matrices.scheme].tile_columns
    )  # of a step
    steps = -(-matrices.columns // columns)
    row_bytes = (steps * columns * itemsize // 64 | 1) * 64
    has_sums = not is_plain and has_zero_points(matrices.scheme, matrices.group_size)
    sums_bytes = steps * columns // 32 * 4 if has_sums else 0
    slots = tiling.warps * tiling.depth * tiling.run * (20 if matrices.group_size else 16) * 64
    return slots + num_rows * (row_bytes + sums_bytes)


def experts_fit(gpu: Gpu, matrices: ExpertMatrices, dtype: torch.dtype, num_rows: int = 1) -> bool:
    """Return whether the kernels multiply `num_rows` rows of activations with these matrices."""
    itemsize = dtype.itemsize
    if matrices.scheme == "PLAIN":
        fits = matrices.columns * itemsize % 16 == 0
    else:
        fits = matrices.quantized_fit(dtype)
    needed = max(_shared_bytes(matrices, each, num_rows, itemsize) for each in (_GATE, DOWN))
    return fits and num_rows <= MAX_CHOSEN and needed + 4096 <= gpu.block_shared_bytes


def expert_gate_up(
    gpu: Gpu,
    x: Tensor,
    matrices: ExpertMatrices,
    ids: Tensor,
    out: Tensor,
    activation: str,
    *,
    limit: float = 0.0,
    input_weights: Tensor | None = None,
) -> None:
    """Write activation(gate · x) * (up · x) of each token's experts to `out`.

    `out` is T [n, experts_per_token, expert_size], x T [n, hidden_size], the matrices
    [2 * expert_size, hidden_size]. `ids` int32 [n, experts_per_token] must be valid, which is not
    checked. The gate's rows come first. With a `limit` > 0, gate is at most that, up is clamped to
    ±limit, and 1 is added. `input_weights` fp32 [n, experts_per_token] multiply the input of each
    expert.
    """
    (n, hidden_size), (_, chosen, expert_size) = x.shape, out.shape
    is_packed = matrices.scheme != "PLAIN"
    if not experts_fit(gpu, matrices, x.dtype) or (is_packed and expert_size % 8):
        raise ValueError(
            f"the kernel does not take {matrices.scheme} matrices of {hidden_size} columns"
            f" and {x.dtype}, or {expert_size} outputs"
        )
    matrices.check_shape(2 * expert_size, hidden_size)
    if n == 0:
        return
    arguments: dict[str, Any] = {
        "num_bytes": n * chosen * matrices.matrix_bytes(x.itemsize),
        "x": x,
        "values": matrices.values,
        "biases": matrices.biases,
        "ids": ids,
        "input_weights": input_weights,
        "out": out,
        **matrices.shared_arguments(expert_size),
        "limit": limit,
    }
    if bulk_gate_up_fits(gpu, matrices, x.dtype, n):
        bulk_gate_up(gpu, matrices, activation, arguments)
        return
    macros: dict[str, Macro] = {"DTYPE": x.dtype, "ACTIVATION": activation.upper()}
    if matrices.scheme == "PLAIN":
        grid, shared_bytes = (-(-expert_size // _PLAIN_ROWS), n * chosen), hidden_size * x.itemsize
        kernel = gpu.kernel("expert_gate_up", **macros)
        kernel(grid, _PLAIN_THREADS, shared_bytes=shared_bytes, **arguments)
        return
    tiling = gate_tiling(matrices.scheme)
    gpu.kernel("packed_gate_up", **macros, **matrices.macros, **tiling.macros)(
        (tiling.blocks(gpu, chosen * -(-expert_size // _ROWS), n), n),
        32 * tiling.warps,
        shared_bytes=_shared_bytes(matrices, tiling, 1, x.itemsize),
        scales=matrices.scales,
        **arguments,
    )


def expert_down(
    gpu: Gpu,
    x: Tensor,
    matrices: ExpertMatrices,
    ids: Tensor,
    weights: Tensor | None,
    out: Tensor,
    *,
    accumulate: bool = False,
) -> None:
    """Write the sum over a token's experts of weight * (matrix · x + bias) to `out`, or add it.

    `out` is fp32 [n, hidden_size], x T [n, experts_per_token, expert_size], the matrices
    [hidden_size, expert_size]. `ids` int32 [n, experts_per_token] must be valid, which is not
    checked. The routing weights are fp32 [n, experts_per_token]; None: 1. The kernel reads ids and
    weights before the kernel before it ends: that must be `expert_gate_up`, or not write them.
    """
    (n, chosen, expert_size), hidden_size = x.shape, out.shape[1]
    if not experts_fit(gpu, matrices, x.dtype, chosen):
        raise ValueError(
            f"the kernel does not take {matrices.scheme} matrices, "
            f"{chosen} rows of {expert_size} elements of {x.dtype}"
        )
    matrices.check_shape(hidden_size, expert_size)
    if n == 0:
        return
    tiling = _down_tiling(gpu, matrices, x.shape, x.itemsize)
    gpu.kernel("expert_down", DTYPE=x.dtype, **matrices.macros, **tiling.macros)(
        (tiling.blocks(gpu, -(-hidden_size // _ROWS), n), n),
        32 * tiling.warps,
        shared_bytes=_shared_bytes(matrices, tiling, chosen, x.itemsize),
        num_bytes=n * chosen * matrices.matrix_bytes(x.itemsize),
        x=x,
        **matrices.arguments,
        ids=ids,
        weights=weights,
        out=out,
        **matrices.shared_arguments(expert_size),
        accumulate=accumulate,
    )
