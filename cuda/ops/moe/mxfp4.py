"""MXFP4 matrices as floats: `kernels/moe/mxfp4_dequantize.cu`.

A matrix [rows, columns] is two tensors, `blocks` uint8 [rows, columns / 32, 16] and `scales` uint8
[rows, columns / 32], as GPT-OSS's files have them.
"""

from torch import Tensor

from swiftchat.cuda.gpu import Gpu

GROUP = 32  # columns with a scale
_DEQUANTIZE_THREADS = 256


def mxfp4_dequantize(gpu: Gpu, blocks: Tensor, scales: Tensor, out: Tensor) -> None:
    """Write a matrix `blocks` [rows, groups, 16], `scales` [rows, groups] to out [rows, columns].

    Exact in bf16 and fp32; fp16 rounds, or overflows, where its range is too small.
    """
    rows, groups = scales.shape
    gpu.kernel("mxfp4_dequantize", DTYPE=out.dtype)(
        -(-rows * groups * 4 // _DEQUANTIZE_THREADS),
        _DEQUANTIZE_THREADS,
        num_bytes=blocks.nbytes + scales.nbytes + out.nbytes,
        blocks=blocks,
        scales=scales,
        out=out,
        num_groups=rows * groups,
    )
