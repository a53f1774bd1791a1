"""Vectors rounded to 8 bits, each by a factor of its own: `kernels/linear/quantize.cu`."""

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec

_THREADS = 256
_CODES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}

# Each way of reading a row with each form, of the dtypes one: they change nothing of each other.
VARIANTS = [
    {
        "DTYPE": [*DTYPE_NAMES.values()][(i + j) % 3],
        "FORM": form.upper(),
        "WIDE": str(i % 2),
        "VECTORS": "280"[i],
    }
    for i in range(3)
    for j, form in enumerate(_CODES)
]


def quantize(
    gpu: Gpu, x: Tensor, codes: Tensor, factors: Tensor, form: str, *, given: float | None = None
) -> None:
    """Write x [n, k] as codes [n, k] and factors fp32 [n], so that codes·factors is near x.

    `form` is int8 or fp8 (e4m3). `codes` have that dtype, or x's own: the same numbers. A factor
    is a vector's largest number / 127.5 or 448, or `given` for all, which must be above 0. k must
    be a multiple of 8.
    """
    n, k = x.shape
    if form not in _CODES or k == 0 or k % 8:
        raise ValueError(f"vectors of {k} numbers are not rounded to {form}")
    if given is not None and not given > 0:
        raise ValueError(f"a factor must be above 0, not {given}")
    wide = codes.dtype == x.dtype
    check_tensor("x", x, (n, k), x.dtype, gpu)
    check_tensor("codes", codes, (n, k), x.dtype if wide else _CODES[form], gpu)
    check_tensor("factors", factors, (n,), torch.float32, gpu)
    each = -(-k // (8 * _THREADS))
    vectors = "2" if each <= 2 else "8" if each <= 8 else "0"
    defines = {
        "DTYPE": DTYPE_NAMES[x.dtype],
        "FORM": form.upper(),
        "WIDE": str(int(wide)),
        "VECTORS": vectors,
    }
    kernel = gpu.kernel(KernelSpec("quantize", "pppif", defines))
    if n:
        kernel(n, _THREADS, x, codes, factors, k, given or 0.0, num_bytes=x.nbytes + codes.nbytes)
