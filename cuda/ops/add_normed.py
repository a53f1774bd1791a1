"""A branch's output normed and added to the residual stream: `kernels/layers/add_normed.cu`."""

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.ops.norm import ROW_LAYOUTS, row_layout

VARIANTS = [
    {"DTYPE": name, "SUMS": sums, "BLOCK": str(threads), "VECTORS": str(vectors)}
    for name in DTYPE_NAMES.values()
    for sums in ("0", "1")
    for threads, vectors in ROW_LAYOUTS
]


def add_normed_spec(dtype: torch.dtype, hidden: int, sums: bool) -> KernelSpec:
    threads, vectors = row_layout(hidden)
    defines = {
        "DTYPE": DTYPE_NAMES[dtype],
        "SUMS": str(int(sums)),
        "BLOCK": str(threads),
        "VECTORS": str(vectors),
    }
    return KernelSpec("add_normed", "pppiff", defines)


def add_normed(
    gpu: Gpu,
    x: Tensor,
    delta: Tensor,
    weight: Tensor,
    eps: float,
    *,
    offset: float = 0.0,
    sums: bool = False,
) -> None:
    """Add the RMSNorm of delta [n, hidden] to x, fp32 [n, hidden], in place.

    weight [hidden] plus `offset` scales it; it is a constant, read before the kernel upstream has
    ended. delta has the weight's dtype; with `sums` it is fp32 and left zero.
    """
    n, hidden = x.shape
    check_tensor("x", x, (n, hidden), "float32", gpu)
    check_tensor("weight", weight, (hidden,), weight.dtype, gpu)
    check_tensor("delta", delta, (n, hidden), torch.float32 if sums else weight.dtype, gpu)
    if n == 0:
        return
    passes = 2 * x.nbytes + delta.nbytes * (1 + sums)
    gpu.kernel(add_normed_spec(weight.dtype, hidden, sums))(
        n, row_layout(hidden)[0], x, delta, weight, hidden, eps, offset, num_bytes=passes
    )
