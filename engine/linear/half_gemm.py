"""Matmuls of 16-bit activations on processors with and without fast 16-bit GEMMs.

Without AVX-512 or ARM's bf16 instructions torch multiplies bf16 matrices by plain loops: 512 x 576
by 3072 x 576 takes 38 ms on two AVX2 cores, 9 ms in fp32. fp16 needs AVX512-FP16. Elsewhere one
tile of the matrix at a time is converted to fp32 and multiplied.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.tiles import tile_rows
from swiftchat.engine.linear.torch_private import has_onednn_gemm

# From here on converting a matrix to fp32 pays; measured with SmolLM2's shapes and 4096 x 4096.
_MIN_ROWS_CONVERTED = 16


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
    shape = weight.shape[0], weight.shape[1]
    return matmul_tiles(x, shape[0], tile_rows(shape), lambda rows: weight[rows], bias=bias)


def matmul_tiles(
    x: Tensor,
    num_rows: int,
    rows_per_tile: int,
    tile: Callable[[slice], Tensor],
    scale: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return scale * (x [n, columns] times a matrix transposed) + bias: [n, num_rows].

    `tile(rows)` returns these rows of the matrix [rows, columns], in any dtype that
    `gemm_dtype(x)` represents; it may be a transposed view. `scale` and `bias` [num_rows] are
    applied in fp32. The result has the dtype of x.
    """
    wide = x.to(gemm_dtype(x))
    out = x.new_empty(len(x), num_rows)
    buffer: Tensor | None = None
    for start in range(0, num_rows, rows_per_tile):
        rows = slice(start, min(start + rows_per_tile, num_rows))
        values = tile(rows)
        if values.dtype != wide.dtype:
            # One buffer for all tiles: a new one each time costs more page faults than arithmetic.
            if buffer is None or buffer.shape != values.shape:
                buffer = torch.empty_like(values, dtype=wide.dtype)
            values = buffer.copy_(values)
        part = torch.mv(values, wide[0]).unsqueeze(0) if len(x) == 1 else F.linear(wide, values)
        if scale is not None:
            part = part.float().mul_(scale[rows])
        if bias is not None:
            part = part.float().add_(bias[rows])
        out[:, rows] = part
    return out
