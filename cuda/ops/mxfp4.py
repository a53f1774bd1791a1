"""Experts whose matrices stay MXFP4: `kernels/moe/mxfp4_*.cu`.

A matrix [rows, columns] is two tensors, `blocks` uint8 [rows, columns / 32, 16] and `scales` uint8
[rows, columns / 32], as GPT-OSS's files have them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.ops.moe import ACTIVATIONS

GROUP = 32  # columns with a scale
_GROUP_BYTES = 80  # of activations in shared memory
_GATE_ROWS, _GATE_THREADS = 8, 128
_DOWN_ROWS, _DOWN_THREADS = 16, 512
_DEQUANTIZE_THREADS = 256


def _gate_up_spec(activation: str) -> KernelSpec:
    arguments = (
        "pointer x, pointer blocks, pointer scales, pointer biases, pointer ids, pointer out, "
        "int hidden_size, int expert_size, int experts_per_token, int gate_step, float limit"
    )
    return KernelSpec("mxfp4_gate_up", arguments, {"ACTIVATION": activation.upper()})


_DOWN = KernelSpec(
    "mxfp4_down",
    "pointer x, pointer blocks, pointer scales, pointer biases, pointer ids, pointer weights, "
    "pointer out, int hidden_size, int expert_size, int experts_per_token",
)


def _dequantize_spec(dtype: torch.dtype) -> KernelSpec:
    arguments = "pointer blocks, pointer scales, pointer out, int64 num_groups"
    return KernelSpec("mxfp4_dequantize", arguments, {"DTYPE": DTYPE_NAMES[dtype]})


VARIANTS = [
    *(_gate_up_spec(activation) for activation in ACTIVATIONS),
    _DOWN,
    *(_dequantize_spec(dtype) for dtype in DTYPE_NAMES),
]


@dataclass(frozen=True)
class PackedExperts:
    """The addresses of one matrix of each expert: int64 [num_experts] each.

    `blocks` and `scales` are contiguous uint8 tensors, `biases` bf16 [rows] or None.
    """

    blocks: Tensor
    scales: Tensor
    biases: Tensor | None = None

    def check(self, gpu: Gpu) -> None:
        """Raise `ValueError` for wrong tensors; the addresses themselves are not checked."""
        for name in ("blocks", "scales", "biases"):
            check_tensor(name, getattr(self, name), self.blocks.shape, "int64", gpu)


def mxfp4_fits(gpu: Gpu, columns: int, num_rows: int = 1) -> bool:
    """Return whether activations of this many columns are whole groups and fit a block."""
    shared_bytes = num_rows * columns // GROUP * _GROUP_BYTES + 1024
    return columns % GROUP == 0 and shared_bytes <= gpu.block_shared_bytes


def mxfp4_gate_up(
    gpu: Gpu,
    x: Tensor,
    experts: PackedExperts,
    ids: Tensor,
    out: Tensor,
    activation: str,
    *,
    gate_step: int = 1,
    limit: float = 0.0,
) -> None:
    """`expert_gate_up` with MXFP4 matrices [2 * expert_size, hidden_size]; all tensors bf16."""
    (n, hidden_size), (_, chosen, expert_size) = x.shape, out.shape
    if not mxfp4_fits(gpu, hidden_size):
        raise ValueError(f"the kernel does not take rows of {hidden_size} elements")
    experts.check(gpu)
    check_tensor("x", x, (n, hidden_size), "bfloat16", gpu)
    check_tensor("out", out, (n, chosen, expert_size), "bfloat16", gpu)
    check_tensor("ids", ids, (n, chosen), "int32", gpu)
    if n == 0:
        return
    gpu.kernel(_gate_up_spec(activation))(
        (-(-expert_size // _GATE_ROWS), n * chosen),
        _GATE_THREADS,
        shared_bytes=hidden_size // GROUP * _GROUP_BYTES,
        num_bytes=n * chosen * 2 * expert_size * hidden_size // GROUP * 17,
        x=x,
        blocks=experts.blocks,
        scales=experts.scales,
        biases=experts.biases,
        ids=ids,
        out=out,
        hidden_size=hidden_size,
        expert_size=expert_size,
        experts_per_token=chosen,
        gate_step=gate_step,
        limit=limit,
    )


def mxfp4_down(
    gpu: Gpu, x: Tensor, experts: PackedExperts, ids: Tensor, weights: Tensor, out: Tensor
) -> None:
    """`expert_down` with MXFP4 matrices [hidden_size, expert_size]; x and biases are bf16."""
    (n, chosen, expert_size), hidden_size = x.shape, out.shape[1]
    if not mxfp4_fits(gpu, expert_size, chosen):
        raise ValueError(f"the kernel does not take {chosen} rows of {expert_size} elements")
    experts.check(gpu)
    check_tensor("x", x, (n, chosen, expert_size), "bfloat16", gpu)
    check_tensor("ids", ids, (n, chosen), "int32", gpu)
    check_tensor("weights", weights, (n, chosen), "float32", gpu)
    check_tensor("out", out, (n, hidden_size), "float32", gpu)
    if n == 0:
        return
    gpu.kernel(_DOWN)(
        (-(-hidden_size // _DOWN_ROWS), n),
        _DOWN_THREADS,
        shared_bytes=chosen * expert_size // GROUP * _GROUP_BYTES,
        num_bytes=n * chosen * expert_size * hidden_size // GROUP * 17,
        x=x,
        blocks=experts.blocks,
        scales=experts.scales,
        biases=experts.biases,
        ids=ids,
        weights=weights,
        out=out,
        hidden_size=hidden_size,
        expert_size=expert_size,
        experts_per_token=chosen,
    )


def mxfp4_dequantize(gpu: Gpu, blocks: Tensor, scales: Tensor, out: Tensor) -> None:
    """Write a matrix `blocks` [rows, groups, 16], `scales` [rows, groups] to out [rows, columns].

    Exact in bf16 and fp32; fp16 rounds, or overflows, where its range is too small.
    """
    rows, groups = scales.shape
    check_tensor("blocks", blocks, (rows, groups, GROUP // 2), "uint8", gpu)
    if not scales.is_contiguous() or scales.dtype != torch.uint8 or scales.device != gpu.device:
        raise ValueError(f"scales must be contiguous uint8 on {gpu.device}")
    check_tensor("out", out, (rows, groups * GROUP), out.dtype, gpu)
    if blocks.numel() == 0:
        return
    gpu.kernel(_dequantize_spec(out.dtype))(
        -(-rows * groups * 4 // _DEQUANTIZE_THREADS),
        _DEQUANTIZE_THREADS,
        num_bytes=blocks.nbytes + scales.nbytes + out.nbytes,
        blocks=blocks,
        scales=scales,
        out=out,
        num_groups=rows * groups,
    )
