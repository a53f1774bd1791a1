"""Residual add and RMSNorm or LayerNorm in one pass: `kernels/layers/norm.cu`."""

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec

# Threads of a block, and vectors of 8 columns that each keeps: the first that holds a row.
_KEPT = ((128, 1), (256, 1), (256, 2), (512, 2), (512, 3))
_IN_PASSES = (256, 0)
ROW_LAYOUTS = (*_KEPT, _IN_PASSES)

VARIANTS = [
    {"DTYPE": name, "LAYER_NORM": kind, "BLOCK": str(threads), "VECTORS": str(vectors)}
    for name in DTYPE_NAMES.values()
    for kind in ("0", "1")
    for threads, vectors in ROW_LAYOUTS
]


def norm_spec(dtype: torch.dtype, hidden: int, layer_norm: bool = False) -> KernelSpec:
    threads, vectors = row_layout(hidden)
    defines = {
        "DTYPE": DTYPE_NAMES[dtype],
        "LAYER_NORM": str(int(layer_norm)),
        "BLOCK": str(threads),
        "VECTORS": str(vectors),
    }
    return KernelSpec("norm", "ppppppiff", defines)


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
    offset: float = 0.0,
) -> None:
    """Add delta [n, hidden] (and bias [hidden]) to x in place, and write its norm to `out`.

    x is fp32 [n, hidden]; all others have the weight's dtype. RMSNorm, or LayerNorm with
    `shift` [hidden] as its bias; `offset` is added to the weight. weight, bias and shift are
    constants: they are read before the kernel upstream has ended.
    """
    n, hidden = x.shape
    dtype = weight.dtype
    check_tensor("x", x, (n, hidden), "float32", gpu)
    check_tensor("weight", weight, (hidden,), dtype, gpu)
    check_tensor("out", out, (n, hidden), dtype, gpu)
    check_tensor("delta", delta, (n, hidden), dtype, gpu)
    check_tensor("bias", bias, (hidden,), dtype, gpu)
    check_tensor("shift", shift, (hidden,), dtype, gpu)
    if n == 0:
        return
    passes = x.nbytes + out.nbytes + (0 if delta is None else x.nbytes + delta.nbytes)
    gpu.kernel(norm_spec(dtype, hidden, layer_norm))(
        n,
        row_layout(hidden)[0],
        x,
        delta,
        bias,
        weight,
        shift,
        out,
        hidden,
        eps,
        offset,
        num_bytes=passes,
    )


def row_layout(hidden: int) -> tuple[int, int]:
    """Threads of a block, and vectors each keeps of a row; none where it reads the row anew."""
    if hidden % 8 == 0:
        for threads, vectors in _KEPT:
            if hidden <= 8 * threads * vectors:
                return threads, vectors
    return _IN_PASSES
