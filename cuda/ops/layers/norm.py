"""RMSNorm and LayerNorm with residual addition: `kernels/layers/norm.cu` and `add_norm.cu`."""

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec

# Threads of a block, and vectors of 8 columns in each thread's registers. A row uses the first
# layout that holds it.
_IN_REGISTERS = ((128, 1), (256, 1), (256, 2), (512, 2), (512, 3))
_IN_PASSES = (256, 0)
_LAYOUTS = (*_IN_REGISTERS, _IN_PASSES)


def _norm_spec(dtype: str, layer_norm: bool, layout: tuple[int, int]) -> KernelSpec:
    defines = {
        "DTYPE": dtype,
        "LAYER_NORM": str(int(layer_norm)),
        "BLOCK": str(layout[0]),
        "VECTORS": str(layout[1]),
    }
    arguments = (
        "pointer x, pointer delta, pointer bias, pointer weight, pointer shift, pointer out, "
        "int hidden_size, float eps, float weight_offset"
    )
    return KernelSpec("norm", arguments, defines)


def _add_norm_spec(dtype: str, zero_delta: bool, layout: tuple[int, int]) -> KernelSpec:
    defines = {
        "DTYPE": dtype,
        "ZERO_DELTA": str(int(zero_delta)),
        "BLOCK": str(layout[0]),
        "VECTORS": str(layout[1]),
    }
    arguments = (
        "pointer x, pointer delta, pointer weight, pointer scale, pointer copy, int hidden_size, "
        "float eps, float weight_offset"
    )
    return KernelSpec("add_norm", arguments, defines)


VARIANTS = [
    make(dtype, flag, layout)
    for make in (_norm_spec, _add_norm_spec)
    for dtype in DTYPE_NAMES.values()
    for flag in (False, True)
    for layout in _LAYOUTS
]


def norm(
    gpu: Gpu,
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor,
    *,
    delta: Tensor | None = None,
    bias: Tensor | None = None,
    shift: Tensor | None = None,
    layer_norm: bool = False,
    weight_offset: float = 0.0,
) -> None:
    """Add delta [n, hidden_size] (and bias [hidden_size]) to x in place; write its norm to `out`.

    x is fp32 [n, hidden_size]; all others have the weight's dtype. The norm is RMSNorm, or
    LayerNorm with bias `shift` [hidden_size]; `weight_offset` is added to the weight. weight, bias
    and shift must be constant: the kernel reads them before the upstream kernel ends.
    """
    n, hidden_size = x.shape
    dtype = weight.dtype
    check_tensor("x", x, (n, hidden_size), "float32", gpu)
    check_tensor("weight", weight, (hidden_size,), dtype, gpu)
    check_tensor("out", out, (n, hidden_size), dtype, gpu)
    check_tensor("delta", delta, (n, hidden_size), dtype, gpu)
    check_tensor("bias", bias, (hidden_size,), dtype, gpu)
    check_tensor("shift", shift, (hidden_size,), dtype, gpu)
    if n == 0:
        return
    layout = _layout(hidden_size)
    gpu.kernel(_norm_spec(DTYPE_NAMES[dtype], layer_norm, layout))(
        n,
        layout[0],
        num_bytes=x.nbytes + out.nbytes + (0 if delta is None else x.nbytes + delta.nbytes),
        x=x,
        delta=delta,
        bias=bias,
        weight=weight,
        shift=shift,
        out=out,
        hidden_size=hidden_size,
        eps=eps,
        weight_offset=weight_offset,
    )


def add_norm(
    gpu: Gpu,
    x: Tensor,
    delta: Tensor,
    weight: Tensor,
    eps: float,
    *,
    weight_offset: float = 0.0,
    zero_delta: bool = False,
    scale: Tensor | None = None,
    copy: Tensor | None = None,
) -> None:
    """Add the RMSNorm of delta [n, hidden_size] to x, fp32 [n, hidden_size], in place.

    weight [hidden_size] plus `weight_offset` scales the norm. delta has the weight's dtype; with
    `zero_delta` it is fp32 and is set to zero after it has been read. x is then multiplied by
    `scale` [1], and written to `copy` [n, hidden_size]; both have the weight's dtype. weight and
    scale must be constant: the kernel reads them before the upstream kernel ends.
    """
    n, hidden_size = x.shape
    delta_dtype = torch.float32 if zero_delta else weight.dtype
    check_tensor("x", x, (n, hidden_size), "float32", gpu)
    check_tensor("weight", weight, (hidden_size,), weight.dtype, gpu)
    check_tensor("delta", delta, (n, hidden_size), delta_dtype, gpu)
    check_tensor("scale", scale, (1,), weight.dtype, gpu, alignment_bytes=weight.itemsize)
    check_tensor("copy", copy, (n, hidden_size), weight.dtype, gpu)
    if n == 0:
        return
    layout = _layout(hidden_size)
    gpu.kernel(_add_norm_spec(DTYPE_NAMES[weight.dtype], zero_delta, layout))(
        n,
        layout[0],
        num_bytes=2 * x.nbytes + delta.nbytes * (1 + zero_delta),
        x=x,
        delta=delta,
        weight=weight,
        scale=scale,
        copy=copy,
        hidden_size=hidden_size,
        eps=eps,
        weight_offset=weight_offset,
    )


def _layout(hidden_size: int) -> tuple[int, int]:
    """Return a block's threads and the vectors of a row in each thread's registers."""
    if hidden_size % 8 == 0:
        for threads, vectors in _IN_REGISTERS:
            if hidden_size <= 8 * threads * vectors:
                return threads, vectors
    return _IN_PASSES
