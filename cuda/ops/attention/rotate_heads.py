"""The rotation of the heads of a KV cache in 5 and 6 bits: `kernels/attention/rotate_heads.cu`."""

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.quantized_kv import PACKED_HEAD_DIMS

_THREADS, _BLOCK_ROWS = 128, 16


def _spec(dtype: torch.dtype, head_dim: int) -> KernelSpec:
    defines = {"DTYPE": DTYPE_NAMES[dtype], "HEAD_DIM": str(head_dim)}
    return KernelSpec("rotate_heads", "pointer heads, int num_rows", defines)


VARIANTS = [
    _spec(dtype, head_dim)
    for dtype in (torch.bfloat16, torch.float16)
    for head_dim in PACKED_HEAD_DIMS
]


def rotate_heads(gpu: Gpu, heads: Tensor) -> None:
    """Multiply heads T [..., head_dim] by their Hadamard matrix in place, which undoes itself.

    T is bf16 or fp16, head_dim 64 or 128.
    """
    head_dim = heads.shape[-1]
    if head_dim not in PACKED_HEAD_DIMS or heads.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"heads must be bf16 or fp16 of 64 or 128, not {heads.dtype} {head_dim}")
    check_tensor("heads", heads, tuple(heads.shape), heads.dtype, gpu)
    num_rows = heads.numel() // head_dim
    if num_rows == 0:
        return
    gpu.kernel(_spec(heads.dtype, head_dim))(
        -(-num_rows // _BLOCK_ROWS),
        _THREADS,
        num_bytes=2 * heads.nbytes,
        heads=heads,
        num_rows=num_rows,
    )
