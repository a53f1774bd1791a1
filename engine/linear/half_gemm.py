"""Matmuls of 16-bit activations on processors with and without fast 16-bit GEMMs.

Without AVX-512 or ARM's bf16 instructions torch multiplies bf16 matrices by plain loops: 512 x 576
by 3072 x 576 takes 38 ms on two AVX2 cores, 9 ms in fp32. fp16 needs AVX512-FP16. Elsewhere one
tile of the matrix at a time is converted to fp32 and multiplied.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.torch_private import has_onednn_gemm

# From here on converting a matrix to fp32 pays; measured with SmolLM2's shapes and 4096 x 4096.
_MIN_ROWS_CONVERTED = 16
_TILE_ELEMENTS = 1 << 19  # converted at a time, so that a tile stays in the processor's cache
_MIN_TILE_ROWS = 64


@cache
def has_fast_gemm(dtype: torch.dtype) -> bool:
    """Return whether GEMMs of `dtype` on this processor are about as fast as those of fp32.

    They are where oneDNN computes them: in bf16 with AVX-512, also without its bf16 instructions
    (then they take up to 1.25 times as long), in fp16 with AVX512-FP16. The limit
    `ONEDNN_MAX_CPU_ISA` counts if it is set before the first matmul.
    """
    return dtype not in (torch.bfloat16, torch.float16) or has_onednn_gemm(dtype)


def gemm_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype to multiply x in: fp32 where GEMMs of its own dtype are slow."""
    return x.dtype if not x.is_cpu or has_fast_gemm(x.dtype) else torch.float32


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x [n, columns] times weight [rows, columns] transposed, plus bias: [n, rows].

    In fp32 tiles where that is faster, else by torch's own operator. Sums are fp32 in both cases
    and rounded to the dtype of x once.
    """
    is_converted = len(x) >= _MIN_ROWS_CONVERTED or not weight.is_contiguous()
    if not is_converted or gemm_dtype(x) == x.dtype:
        return F.linear(x, weight, bias)
    return _linear_fp32(x, weight, bias)


def _linear_fp32(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` in fp32, one tile of the matrix at a time; `weight` may be a transposed view."""
    num_rows, num_columns = weight.shape
    step = max(_MIN_TILE_ROWS, _TILE_ELEMENTS // num_columns // _MIN_TILE_ROWS * _MIN_TILE_ROWS)
    wide = x.float()
    out = x.new_empty(len(x), num_rows)
    # One buffer for all tiles: a new one each time costs more page faults than arithmetic.
    buffer = torch.empty(min(step, num_rows), num_columns)
    for start in range(0, num_rows, step):
        tile = weight[start : start + step]
        values = buffer[: len(tile)].copy_(tile)
        part = torch.mv(values, wide[0]).unsqueeze(0) if len(x) == 1 else F.linear(wide, values)
        out[:, start : start + step] = (
            part if bias is None else part.add_(bias[start : start + step])
        )
    return out
