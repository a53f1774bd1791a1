"""The one check every operation makes before its pointers reach a kernel."""

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu


def check_tensor(
    name: str, tensor: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype | str, gpu: Gpu
) -> None:
    """Raise `ValueError` unless the tensor is what a kernel takes it for; None passes.

    Contiguous, on the GPU, of this shape and dtype (a `torch.dtype` or its name), and aligned
    to 16 bytes, so that vector loads are allowed.
    """
    if tensor is None:
        return
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    if tensor.shape != shape or tensor.dtype != wanted:
        raise ValueError(
            f"{name} must be {wanted} {list(shape)}, not {tensor.dtype} {list(tensor.shape)}"
        )
    if tensor.device != gpu.device:
        raise ValueError(f"{name} must be on {gpu.device}, not {tensor.device}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, not with strides {tensor.stride()}")
    if tensor.data_ptr() % 16 and tensor.numel():
        raise ValueError(f"{name} must be aligned to 16 bytes")
