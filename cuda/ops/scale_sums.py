"""Integer sums of a product as numbers: `kernels/linear/scale_sums.cu`."""

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec

_THREADS = 256
MAX_VECTORS = 65_535

VARIANTS = [{"DTYPE": name} for name in DTYPE_NAMES.values()]


def scale_sums(
    gpu: Gpu,
    sums: Tensor,
    factors: Tensor,
    row_scale: Tensor,
    out: Tensor,
    first: int,
    *,
    bias: Tensor | None = None,
) -> None:
    """Write sums int32 [n, width] into the columns of out [n, rows] from `first` on.

    Each is multiplied by its row's of `factors` fp32 [n] and its column's of `row_scale` fp32
    [rows], and `bias` [rows] is added.
    """
    (n, width), rows = sums.shape, out.shape[1]
    if first % 4 or width % 4 or rows % 4 or first + width > rows or n > MAX_VECTORS:
        raise ValueError(f"{n} × {width} sums do not fit {rows} columns from {first} on")
    check_tensor("sums", sums, (n, width), torch.int32, gpu)
    check_tensor("factors", factors, (n,), torch.float32, gpu)
    check_tensor("row_scale", row_scale, (rows,), torch.float32, gpu)
    check_tensor("bias", bias, (rows,), out.dtype, gpu)
    check_tensor("out", out, (n, rows), out.dtype, gpu)
    kernel = gpu.kernel(KernelSpec("scale_sums", "pppppiii", {"DTYPE": DTYPE_NAMES[out.dtype]}))
    if n and width:
        kernel(
            (-(-width // (4 * _THREADS)), n),
            _THREADS,
            sums,
            factors,
            row_scale,
            bias,
            out,
            width,
            first,
            rows,
            num_bytes=sums.nbytes + sums.numel() * out.itemsize,
        )
