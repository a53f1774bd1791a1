"""Residual add and RMSNorm or LayerNorm in one pass: `kernels/norm.cu`."""

import torch
from torch import Tensor

from swiftchat.cuda.check import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec

VARIANTS = [
    {"DTYPE": name, "LAYER_NORM": kind} for name in DTYPE_NAMES.values() for kind in ("0", "1")
]


def norm_spec(dtype: torch.dtype, layer_norm: bool = False) -> KernelSpec:
    defines = {"DTYPE": DTYPE_NAMES[dtype], "LAYER_NORM": str(int(layer_norm))}
    return KernelSpec("norm", "ppppppif", defines)


def norm(gpu: Gpu, x: Tensor, weight: Tensor, eps: float, out: Tensor, *,
         delta: Tensor | None = None, bias: Tensor | None = None,
         shift: Tensor | None = None, layer_norm: bool = False) -> None:  # fmt: skip
    """Add delta [n, hidden] (and bias [hidden]) to x in place, and write its norm to `out`.

    x is fp32 [n, hidden]; all others have the weight's dtype. RMSNorm, or LayerNorm with
    `shift` [hidden] as its bias.
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
    gpu.kernel(norm_spec(dtype, layer_norm))(
        n, 256, x, delta, bias, weight, shift, out, hidden, eps, num_bytes=passes
    )
