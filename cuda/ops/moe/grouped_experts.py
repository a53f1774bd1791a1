"""Mixture of experts for many tokens: each expert computes all its rows, `kernels/moe/grouped_*`.

No kernel needs the host to know how many rows an expert has.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.expert_matrices import ExpertMatrices
from swiftchat.cuda.ops.moe.route import MAX_EXPERTS
from swiftchat.cuda.packed_layout import PACKED_SCHEMES, tile_bytes
from swiftchat.cuda.signature import DTYPE_NAMES, Macro

_ORDER_THREADS, _THREADS = 1024, 256
_BLOCK_COLUMNS = 128  # rows of a matrix that a block multiplies
LARGE_TILE, SMALL_TILE = 128, 32  # rows of activations
# With fewer rows of an expert on average, small tiles waste less. Large tiles of quantized matrices
# have a faster kernel on Hopper.
_MIN_LARGE_TILE_ROWS, _MIN_QUANTIZED_WGMMA_ROWS = 40, 24
_SUM_COLUMNS = 2048  # of a block


@dataclass(frozen=True)
class Tiling:
    """How a grouped GEMM is compiled: matrices, the rows of a block, and its shared memory."""

    dtype: torch.dtype
    scheme: str
    group_size: int
    rows: int

    @property
    def stages(self) -> int:
        """Tiles of activations in shared memory."""
        if self.rows == SMALL_TILE:
            return 4
        return 4 if self._is_4_bit else 3

    @property
    def shared_bytes(self) -> int:
        slots = self.stages // 2 + 1 if self._is_4_bit else self.stages
        slot_bytes = _BLOCK_COLUMNS * 128
        if self.scheme != "PLAIN":
            slot_bytes = _BLOCK_COLUMNS // 8 * tile_bytes(self.scheme, self.group_size)
        return self.stages * self.rows * 128 + slots * slot_bytes

    @property
    def _is_4_bit(self) -> bool:
        """Whether a slot has a matrix for two stages of activations."""
        return self.scheme in PACKED_SCHEMES and PACKED_SCHEMES[self.scheme].tile_columns == 128

    @property
    def macros(self) -> dict[str, Macro]:
        return {
            "DTYPE": self.dtype,
            "SCHEME": self.scheme,
            "GROUP_SIZE": self.group_size,
            "BLOCK_ROWS": self.rows,
            "STAGES": self.stages,
        }


@dataclass(frozen=True)
class ExpertOrder:
    """The choices of n tokens sorted by expert.

    `order` int32 [n * experts_per_token] are indices of choices; those of expert e are
    `order[starts[e] : starts[e + 1]]`, ascending. `starts` is int32 [num_experts + 1].
    """

    order: Tensor
    starts: Tensor

    @property
    def num_experts(self) -> int:
        return len(self.starts) - 1

    def tiling(self, gpu: Gpu, dtype: torch.dtype, matrices: ExpertMatrices) -> tuple[Tiling, int]:
        """Return the tiles, and an upper bound of their number for one column of them."""
        num_choices, num_experts = len(self.order), self.num_experts
        has_faster = gpu.arch == "sm_90a" and matrices.scheme != "PLAIN"
        least = _MIN_QUANTIZED_WGMMA_ROWS if has_faster else _MIN_LARGE_TILE_ROWS
        rows = LARGE_TILE if num_choices >= num_experts * least else SMALL_TILE
        most = num_choices // rows + min(num_experts, num_choices)
        return Tiling(dtype, matrices.scheme, matrices.group_size, rows), most


def grouped_fits(matrices: ExpertMatrices, dtype: torch.dtype) -> bool:
    """Return whether the kernels multiply activations of this dtype with these matrices."""
    if matrices.rows % 2:
        return False
    if matrices.scheme == "PLAIN":
        return dtype in DTYPE_NAMES and matrices.columns % 8 == 0
    return matrices.quantized_fit(dtype)


def _check(matrices: ExpertMatrices, rows: int, columns: int, dtype: torch.dtype) -> None:
    """Raise `ValueError` unless the kernels take these matrices, [rows, columns]."""
    if not grouped_fits(matrices, dtype):
        size = f"{matrices.rows} rows of {matrices.columns} elements"
        raise ValueError(f"the kernel does not take {matrices.scheme} matrices of {size}")
    matrices.check_shape(rows, columns)


def expert_order(gpu: Gpu, ids: Tensor, num_experts: int) -> ExpertOrder:
    """Sort the choices `ids` int32 [n, experts_per_token] by expert.

    They must be in [0, num_experts), which is not checked.
    """
    if not 1 <= num_experts <= MAX_EXPERTS:
        raise ValueError(f"{num_experts} experts; at most {MAX_EXPERTS}")
    order = torch.empty(ids.numel(), dtype=torch.int32, device=gpu.device)
    starts = torch.empty(num_experts + 1, dtype=torch.int32, device=gpu.device)
    gpu.kernel("expert_order")(
        num_experts,
        _ORDER_THREADS,
        num_bytes=2 * ids.nbytes,
        ids=ids,
        order=order,
        starts=starts,
        num_experts=num_experts,
        num_choices=ids.numel(),
    )
    return ExpertOrder(order, starts)


def grouped_gate_up(
    gpu: Gpu,
    x: Tensor,
    matrices: ExpertMatrices,
    rows: ExpertOrder,
    out: Tensor,
    activation: str,
    *,
    limit: float = 0.0,
    input_weights: Tensor | None = None,
) -> None:
    """`expert_gate_up` for the rows of each expert: `out` T [num_choices, expert_size].

    x is T [n, hidden_size]; the rows of `out` are in the order of `rows`, `input_weights` fp32
    [n, experts_per_token] in that of the choices.
    """
    (n, hidden_size), (num_choices, expert_size) = x.shape, out.shape
    _check(matrices, 2 * expert_size, hidden_size, x.dtype)
    if expert_size % (2 if matrices.scheme == "PLAIN" else 8):
        raise ValueError(f"the kernel does not take {expert_size} outputs of {matrices.scheme}")
    if n == 0 or num_choices % n:
        raise ValueError(f"{num_choices} rows of out for {n} tokens")
    tiling, most = rows.tiling(gpu, x.dtype, matrices)
    gpu.kernel("grouped_gate_up", ACTIVATION=activation.upper(), **tiling.macros)(
        (-(-2 * expert_size // _BLOCK_COLUMNS), most),
        _THREADS,
        shared_bytes=tiling.shared_bytes,
        num_bytes=x.nbytes + out.nbytes,
        x=x,
        **matrices.arguments,
        input_weights=input_weights,
        order=rows.order,
        starts=rows.starts,
        out=out,
        num_experts=rows.num_experts,
        experts_per_token=num_choices // n,
        limit=limit,
    )


def grouped_down(
    gpu: Gpu, x: Tensor, matrices: ExpertMatrices, rows: ExpertOrder, out: Tensor
) -> None:
    """Write matrix · x + bias of each row's expert to `out` T [num_choices, hidden_size].

    x is T [num_choices, expert_size] in the order of `rows`, `out` in that of the choices.
    """
    expert_size, hidden_size = x.shape[1], out.shape[1]
    _check(matrices, hidden_size, expert_size, x.dtype)
    tiling, most = rows.tiling(gpu, x.dtype, matrices)
    gpu.kernel("grouped_down", **tiling.macros)(
        (-(-hidden_size // _BLOCK_COLUMNS), most),
        _THREADS,
        shared_bytes=tiling.shared_bytes,
        num_bytes=x.nbytes + out.nbytes,
        x=x,
        **matrices.arguments,
        order=rows.order,
        starts=rows.starts,
        out=out,
        num_experts=rows.num_experts,
    )


def expert_sum(gpu: Gpu, parts: Tensor, weights: Tensor | None, out: Tensor) -> None:
    """Write the sums of `parts` T [n, experts_per_token, hidden_size] times weights to `out`.

    `weights` fp32 [n, experts_per_token], None: 1; `out` fp32 [n, hidden_size]. The order of each
    sum is that of the experts, in fp32.
    """
    n, _, hidden_size = parts.shape
    if hidden_size % 8:
        raise ValueError(f"the kernel does not take rows of {hidden_size} elements")
    gpu.kernel("expert_sum", DTYPE=parts.dtype)(
        (-(-hidden_size // _SUM_COLUMNS), n),
        _THREADS,
        num_bytes=parts.nbytes + out.nbytes,
        parts=parts,
        weights=weights,
        out=out,
    )
