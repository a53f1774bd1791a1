"""The rotation of the heads of a KV cache in 5 and 6 bits: `kernels/attention/rotate_heads.cu`."""

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.quantized_kv import PACKED_HEAD_DIMS

_THREADS, _BLOCK_ROWS = 128, 16


def rotate_heads(gpu: Gpu, heads: Tensor) -> None:
    """Multiply heads T [num_tokens, num_heads, head_dim] by their Hadamard matrix in place.

    Twice undoes it. T is bf16 or fp16, head_dim 64 or 128.
    """
    head_dim = heads.shape[-1]
    if head_dim not in PACKED_HEAD_DIMS or heads.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"heads must be bf16 or fp16 of 64 or 128, not {heads.dtype} {head_dim}")
    num_rows = heads.numel() // head_dim
    gpu.kernel("rotate_heads", DTYPE=heads.dtype, HEAD_DIM=head_dim)(
        -(-num_rows // _BLOCK_ROWS),
        _THREADS,
        num_bytes=2 * heads.nbytes,
        heads=heads,
        num_rows=num_rows,
    )
