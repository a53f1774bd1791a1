"""Float tensors as matrices of the native kernels."""

import torch
from torch import Tensor

from swiftchat.engine.cpu.native import Format, Matrix

_FORMATS = {
    torch.float32: Format.F32,
    torch.float16: Format.F16,
    torch.bfloat16: Format.BF16,
}


def float_matrix(tensor: Tensor) -> Matrix:
    """Describe a tensor [rows, cols] with contiguous rows for the kernels; it must stay alive."""
    rows, cols = tensor.shape
    return Matrix(
        format=_FORMATS[tensor.dtype],
        rows=rows,
        cols=cols,
        stride=tensor.stride(0) * tensor.itemsize,
        data=tensor.data_ptr(),
    )
