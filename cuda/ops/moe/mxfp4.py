"""MXFP4 matrices as floats: `kernels/moe/mxfp4_dequantize.cu`.

A matrix [rows, columns] is two tensors, `blocks` uint8 [rows, columns / 32, 16] and `scales` uint8
[rows, columns / 32], as GPT-OSS's files have them.
"""

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec

GROUP = 32  # columns with a scale
_DEQUANTIZE_THREADS = 256


def _dequantize_spec(dtype: torch.dtype) -> KernelSpec:
    arguments = "pointer blocks, pointer scales, pointer out, int64 num_groups"
    return KernelSpec("mxfp4_dequantize", arguments, {"DTYPE": DTYPE_NAMES[dtype]})


VARIANTS = [_dequantize_spec(dtype) for dtype in DTYPE_NAMES]


def mxfp4_dequantize(gpu: Gpu, blocks: Tensor, scales: Tensor, out: Tensor) -> None:
    """Write a matrix `blocks` [rows, groups, 16], `scales` [rows, groups] to out [rows, columns].

    Exact in bf16 and fp32; fp16 rounds, or overflows, where its range is too small.
    """
    rows, groups = scales.shape
    check_tensor("blocks", blocks, (rows, groups, GROUP // 2), "uint8", gpu)
    if not scales.is_contiguous() or scales.dtype != torch.uint8 or scales.device != gpu.device:
        raise ValueError(f"scales must be contiguous uint8 on {gpu.device}")
    check_tensor("out", out, (rows, groups * GROUP), out.dtype, gpu)
    if blocks.numel() == 0:
        return
    gpu.kernel(_dequantize_spec(out.dtype))(
        -(-rows * groups * 4 // _DEQUANTIZE_THREADS),
        _DEQUANTIZE_THREADS,
        num_bytes=blocks.nbytes + scales.nbytes + out.nbytes,
        blocks=blocks,
        scales=scales,
        out=out,
        num_groups=rows * groups,
    )
