"""Mixture of experts for many tokens: each expert computes all its rows, `kernels/moe/grouped_*`.

No kernel needs the host to know how many rows an expert has.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.cuda.checks import MAX_GRID_Y, check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.ops.moe.expert_matrices import ACTIVATIONS, ExpertMatrices
from swiftchat.cuda.ops.moe.route import MAX_EXPERTS
from swiftchat.cuda.packed_layout import PACKINGS, TILE_COLUMNS, packing_fits, tile_bytes

_ORDER_THREADS, _THREADS = 1024, 256
_BLOCK_COLUMNS = 128  # rows of a matrix that a block multiplies
_LARGE_TILE, _SMALL_TILE = 128, 32  # rows of activations
# With fewer rows of an expert on average, small tiles waste less. Large tiles of quantized matrices
# have a faster kernel on Hopper.
_MIN_LARGE_TILE_ROWS, _MIN_QUANTIZED_WGMMA_ROWS = 40, 24
_MXFP4_GROUP = 32
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
        if self.rows == _SMALL_TILE:
            return 5 if self.scheme == "MXFP4" else 4
        return 4 if self.scheme in ("MXFP4", "INT4") else 3

    @property
    def shared_bytes(self) -> int:
        slots = self.stages // 2 + 1 if self.scheme == "INT4" else self.stages
        if self.scheme in TILE_COLUMNS:
            slot_bytes = _BLOCK_COLUMNS // 8 * tile_bytes(self.scheme, self.group_size)
        else:
            slot_bytes = _BLOCK_COLUMNS * (128 if self.scheme == "PLAIN" else 40)
        return self.stages * self.rows * 128 + slots * slot_bytes

    @property
    def defines(self) -> dict[str, str]:
        return {
            "DTYPE": DTYPE_NAMES[self.dtype],
            "SCHEME": self.scheme,
            "GROUP_SIZE": str(self.group_size),
            "BLOCK_ROWS": str(self.rows),
            "STAGES": str(self.stages),
        }


def _tilings() -> Iterator[Tiling]:
    for rows in (_LARGE_TILE, _SMALL_TILE):
        for dtype in DTYPE_NAMES:
            yield Tiling(dtype, "PLAIN", 0, rows)
        yield Tiling(torch.bfloat16, "MXFP4", 0, rows)
        for scheme, group_size in PACKINGS:
            for dtype in (torch.bfloat16, torch.float16):
                yield Tiling(dtype, scheme, group_size, rows)


_ORDER = KernelSpec("expert_order", "pointer ids, pointer order, pointer starts, int num_choices")


def _gate_up_spec(tiling: Tiling, activation: str) -> KernelSpec:
    arguments = (
        "pointer x, pointer values, pointer scales, pointer biases, pointer input_weights, "
        "pointer order, pointer starts, pointer out, int num_experts, int hidden_size, "
        "int expert_size, "
        "int experts_per_token, int gate_step, float limit"
    )
    defines = {**tiling.defines, "ACTIVATION": activation.upper()}
    return KernelSpec("grouped_gate_up", arguments, defines)


def _down_spec(tiling: Tiling) -> KernelSpec:
    arguments = (
        "pointer x, pointer values, pointer scales, pointer biases, pointer order, "
        "pointer starts, pointer out, int num_experts, int hidden_size, int expert_size"
    )
    return KernelSpec("grouped_down", arguments, tiling.defines)


def _sum_spec(dtype: torch.dtype) -> KernelSpec:
    arguments = (
        "pointer parts, pointer weights, pointer out, int hidden_size, int experts_per_token"
    )
    return KernelSpec("expert_sum", arguments, {"DTYPE": DTYPE_NAMES[dtype]})


VARIANTS = [
    _ORDER,
    *(_gate_up_spec(tiling, activation) for tiling in _tilings() for activation in ACTIVATIONS),
    *(_down_spec(tiling) for tiling in _tilings()),
    *(_sum_spec(dtype) for dtype in DTYPE_NAMES),
]


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

    def check(self, gpu: Gpu, num_choices: int) -> None:
        check_tensor("order", self.order, (num_choices,), "int32", gpu)
        check_tensor("starts", self.starts, (self.num_experts + 1,), "int32", gpu)

    def tiling(self, gpu: Gpu, dtype: torch.dtype, matrices: ExpertMatrices) -> tuple[Tiling, int]:
        """Return the tiles, and an upper bound of their number for one column of them."""
        num_choices, num_experts = len(self.order), self.num_experts
        has_faster = gpu.arch == "sm_90a" and matrices.scheme != "PLAIN"
        least = _MIN_QUANTIZED_WGMMA_ROWS if has_faster else _MIN_LARGE_TILE_ROWS
        rows = _LARGE_TILE if num_choices >= num_experts * least else _SMALL_TILE
        most = num_choices // rows + min(num_experts, num_choices)
        if most > MAX_GRID_Y:
            raise ValueError(f"{num_choices} choices of {num_experts} experts are too many")
        return Tiling(dtype, matrices.scheme, matrices.group_size, rows), most


def grouped_fits(matrices: ExpertMatrices, dtype: torch.dtype) -> bool:
    """Return whether the kernels multiply activations of this dtype with these matrices."""
    scheme, columns = matrices.scheme, matrices.columns
    if matrices.rows % 2:
        return False
    if scheme == "PLAIN":
        return dtype in DTYPE_NAMES and columns % 8 == 0
    if scheme == "MXFP4":
        return dtype == torch.bfloat16 and columns % _MXFP4_GROUP == 0
    return dtype.itemsize == 2 and packing_fits(scheme, columns, matrices.group_size)


def _check(gpu: Gpu, matrices: ExpertMatrices, rows: int, columns: int, dtype: torch.dtype) -> None:
    """Raise `ValueError` unless the kernels take these matrices, [rows, columns]."""
    if not grouped_fits(matrices, dtype):
        size = f"{matrices.rows} rows of {matrices.columns} elements"
        raise ValueError(f"the kernel does not take {matrices.scheme} matrices of {size}")
    if (matrices.rows, matrices.columns) != (rows, columns):
        raise ValueError(f"the matrices must be {[rows, columns]}")
    matrices.check(gpu)


def expert_order(gpu: Gpu, ids: Tensor, num_experts: int) -> ExpertOrder:
    """Sort the choices `ids` int32 [n, experts_per_token] by expert.

    They must be in [0, num_experts), which is not checked.
    """
    if not 1 <= num_experts <= MAX_EXPERTS:
        raise ValueError(f"{num_experts} experts; at most {MAX_EXPERTS}")
    check_tensor("ids", ids, tuple(ids.shape), "int32", gpu)
    order = torch.empty(ids.numel(), dtype=torch.int32, device=gpu.device)
    starts = torch.empty(num_experts + 1, dtype=torch.int32, device=gpu.device)
    gpu.kernel(_ORDER)(
        num_experts,
        _ORDER_THREADS,
        num_bytes=2 * ids.nbytes,
        ids=ids,
        order=order,
        starts=starts,
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
    gate_step: int = 1,
    limit: float = 0.0,
    input_weights: Tensor | None = None,
) -> None:
    """`expert_gate_up` for the rows of each expert: `out` T [num_choices, expert_size].

    x is T [n, hidden_size]; the rows of `out` are in the order of `rows`, `input_weights` fp32
    [n, experts_per_token] in that of the choices.
    """
    (n, hidden_size), (num_choices, expert_size) = x.shape, out.shape
    _check(gpu, matrices, 2 * expert_size, hidden_size, x.dtype)
    is_packed = matrices.scheme in TILE_COLUMNS
    if expert_size % (8 if is_packed else 2) or (is_packed and gate_step == 2):
        raise ValueError(f"the kernel does not take {expert_size} outputs of {matrices.scheme}")
    if n == 0 or num_choices % n:
        raise ValueError(f"{num_choices} rows of out for {n} tokens")
    rows.check(gpu, num_choices)
    check_tensor("x", x, (n, hidden_size), x.dtype, gpu)
    check_tensor("out", out, (num_choices, expert_size), x.dtype, gpu)
    check_tensor("input_weights", input_weights, (n, num_choices // n), "float32", gpu)
    tiling, most = rows.tiling(gpu, x.dtype, matrices)
    gpu.kernel(_gate_up_spec(tiling, activation))(
        (-(-2 * expert_size // _BLOCK_COLUMNS), most),
        _THREADS,
        shared_bytes=tiling.shared_bytes,
        num_bytes=x.nbytes + out.nbytes,
        x=x,
        values=matrices.values,
        scales=matrices.scales,
        biases=matrices.biases,
        input_weights=input_weights,
        order=rows.order,
        starts=rows.starts,
        out=out,
        num_experts=rows.num_experts,
        hidden_size=hidden_size,
        expert_size=expert_size,
        experts_per_token=num_choices // n,
        gate_step=gate_step,
        limit=limit,
    )


def grouped_down(
    gpu: Gpu, x: Tensor, matrices: ExpertMatrices, rows: ExpertOrder, out: Tensor
) -> None:
    """Write matrix · x + bias of each row's expert to `out` T [num_choices, hidden_size].

    x is T [num_choices, expert_size] in the order of `rows`, `out` in that of the choices.
    """
    (num_choices, expert_size), hidden_size = x.shape, out.shape[1]
    _check(gpu, matrices, hidden_size, expert_size, x.dtype)
    rows.check(gpu, num_choices)
    check_tensor("x", x, (num_choices, expert_size), x.dtype, gpu)
    check_tensor("out", out, (num_choices, hidden_size), x.dtype, gpu)
    if num_choices == 0:
        return
    tiling, most = rows.tiling(gpu, x.dtype, matrices)
    gpu.kernel(_down_spec(tiling))(
        (-(-hidden_size // _BLOCK_COLUMNS), most),
        _THREADS,
        shared_bytes=tiling.shared_bytes,
        num_bytes=x.nbytes + out.nbytes,
        x=x,
        values=matrices.values,
        scales=matrices.scales,
        biases=matrices.biases,
        order=rows.order,
        starts=rows.starts,
        out=out,
        num_experts=rows.num_experts,
        hidden_size=hidden_size,
        expert_size=expert_size,
    )


def expert_sum(gpu: Gpu, parts: Tensor, weights: Tensor | None, out: Tensor) -> None:
    """Write the sums of `parts` T [n, experts_per_token, hidden_size] times weights to `out`.

    `weights` fp32 [n, experts_per_token], None: 1; `out` fp32 [n, hidden_size]. The order of each
    sum is that of the experts, in fp32.
    """
    n, chosen, hidden_size = parts.shape
    if hidden_size % 8 or n > MAX_GRID_Y:
        raise ValueError(f"the kernel does not take {n} rows of {hidden_size} elements")
    check_tensor("parts", parts, (n, chosen, hidden_size), parts.dtype, gpu)
    check_tensor("weights", weights, (n, chosen), "float32", gpu)
    check_tensor("out", out, (n, hidden_size), "float32", gpu)
    if n == 0:
        return
    gpu.kernel(_sum_spec(parts.dtype))(
        (-(-hidden_size // _SUM_COLUMNS), n),
        _THREADS,
        num_bytes=parts.nbytes + out.nbytes,
        parts=parts,
        weights=weights,
        out=out,
        hidden_size=hidden_size,
        experts_per_token=chosen,
    )
