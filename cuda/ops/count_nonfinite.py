"""How many elements are NaN or infinite: `kernels/sampling/count_nonfinite.cu`."""

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec

VARIANTS = [{"DTYPE": name} for name in DTYPE_NAMES.values()]

_BLOCK_BYTES = 256 * 4 * 16  # what a block reads at once
_BLOCKS_PER_SM = 8


def count_nonfinite_spec(dtype: torch.dtype) -> KernelSpec:
    return KernelSpec("count_nonfinite", "ppl", {"DTYPE": DTYPE_NAMES[dtype]})


def count_nonfinite(gpu: Gpu, x: Tensor, out: Tensor) -> None:
    """Add the number of NaN and infinite elements of x, of any shape, to out int64 [1]."""
    if x.dtype not in DTYPE_NAMES:
        raise ValueError(f"x must be of a floating-point dtype, not {x.dtype}")
    check_tensor("x", x, tuple(x.shape), x.dtype, gpu)
    check_tensor("out", out, (1,), "int64", gpu)
    if x.numel() == 0:
        return
    blocks = min(-(-x.nbytes // _BLOCK_BYTES), gpu.num_sms * _BLOCKS_PER_SM)
    gpu.kernel(count_nonfinite_spec(x.dtype))(blocks, 256, x, out, x.numel(), num_bytes=x.nbytes)
