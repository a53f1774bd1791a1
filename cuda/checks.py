"""Checks of kernel arguments before their pointers reach a kernel."""

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu

MAX_GRID_Y = 65_535  # also the limit of a grid's third dimension


def check_tensor(
    name: str,
    tensor: Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype | str,
    gpu: Gpu,
    *,
    may_be_pinned: bool = False,
    alignment_bytes: int = 16,
) -> None:
    """Raise `ValueError` unless the tensor has this shape and dtype; None passes.

    It must also be contiguous, on the GPU (or in pinned host memory, if it `may_be_pinned`) and
    aligned; vector loads require 16 bytes.
    `dtype` is a `torch.dtype` or its name.
    """
    if tensor is None:
        return
    expected = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    if tensor.shape != shape or tensor.dtype != expected:
        raise ValueError(
            f"{name} must be {expected} {list(shape)}, not {tensor.dtype} {list(tensor.shape)}"
        )
    is_pinned = may_be_pinned and tensor.device.type == "cpu" and tensor.is_pinned()
    if tensor.device != gpu.device and not is_pinned:
        raise ValueError(f"{name} must be on {gpu.device}, not {tensor.device}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, not with strides {tensor.stride()}")
    if tensor.data_ptr() % alignment_bytes and tensor.numel():
        raise ValueError(f"{name} must be aligned to {alignment_bytes} bytes")
