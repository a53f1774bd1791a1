"""Products of vectors rounded to 8 bits, on a GPU: few by our kernel, many in 8 bits too."""

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear import Workspace, linear, linear_residual
from swiftchat.cuda.ops.linear_layout import MAX_GEMV_ROWS, linear_fits
from swiftchat.cuda.ops.quantize import quantize, scale_gemm_output
from swiftchat.cuda.packed_matrix import PackedMatrix
from swiftchat.engine.linear.quantized_gpu import FEW_VECTORS
from swiftchat.weights.quantization.scheme import ActivationQuantization

_TILE_BYTES = 1 << 25  # of integer sums made at once: they stay in L2
_CUTLASS_TILE = 256  # vectors that torch's product may read the factors of, past the last
_FP8_CORES = (8, 9)  # the first compute capability that has them


def rounded_product(
    gpu: Gpu,
    x: Tensor,
    weight: PackedMatrix,
    rounding: ActivationQuantization,
    bias: Tensor | None,
    workspace: Workspace,
) -> Tensor | None:
    """x [n, k], rounded, · weightᵀ + bias, in x's dtype, for any number of vectors.

    None where no kernel has this form of matrix with such vectors, or so many of them. Codes are
    multiplied as they are and factors applied to the sums, so that few and many vectors differ
    by the order of the sums alone, and for fp8 by what the tensor cores keep of them.
    """
    n, rows = len(x), len(weight)
    if n <= FEW_VECTORS and linear_fits(gpu, min(n, MAX_GEMV_ROWS), weight, splittable=True):
        return _few(gpu, x, weight, rounding, bias, workspace)
    forms = weight.scheme, rounding.dtype
    if weight.shape[1] % 64:  # torch's products have no use for columns that are filled up
        return None
    if forms == ("INT8", "int8") and n > MAX_GEMV_ROWS and rows % 8 == 0:
        return _many_int8(gpu, x, weight, rounding, bias)
    has_cores = gpu.capability >= _FP8_CORES and x.dtype == torch.bfloat16
    if forms == ("FP8", "fp8") and has_cores and rows % 16 == 0:
        return _many_fp8(gpu, x, weight, rounding, bias)
    return None


def _few(
    gpu: Gpu,
    x: Tensor,
    weight: PackedMatrix,
    rounding: ActivationQuantization,
    bias: Tensor | None,
    workspace: Workspace,
) -> Tensor | None:
    n, rows = len(x), len(weight)
    codes, factors = _rounded(gpu, x, x.dtype, rounding)
    whole = linear_fits(gpu, min(n, MAX_GEMV_ROWS), weight)
    if not whole and not workspace.has_counters(rows):
        return None
    # Vectors too long for the kernel are split, and their sums added up in fp32.
    out = x.new_empty(n, rows) if whole else torch.zeros(n, rows, device=x.device)
    for i in range(0, n, MAX_GEMV_ROWS):
        some = slice(i, i + MAX_GEMV_ROWS)
        product = linear if whole else linear_residual
        product(gpu, codes[some], weight, out[some], workspace, bias=bias, x_scale=factors[some])
    return out.to(x.dtype)


def _many_int8(
    gpu: Gpu, x: Tensor, weight: PackedMatrix, rounding: ActivationQuantization, bias: Tensor | None
) -> Tensor:
    n, rows = len(x), len(weight)
    codes, factors = _rounded(gpu, x, torch.int8, rounding)
    out = x.new_empty(n, rows)
    step = min(rows, max(8, _TILE_BYTES // (4 * n) // 8 * 8))
    scratch = torch.empty(n * step, dtype=torch.int32, device=x.device)
    for first in range(0, rows, step):
        tile = weight.plain_values(first, min(rows, first + step)).view(torch.int8)
        sums = scratch[: n * len(tile)].view(n, len(tile))
        torch._int_mm(codes, tile.t(), out=sums)
        scale_gemm_output(gpu, sums, factors, weight.row_scale, out, first, bias=bias)
    return out


def _many_fp8(
    gpu: Gpu, x: Tensor, weight: PackedMatrix, rounding: ActivationQuantization, bias: Tensor | None
) -> Tensor:
    codes, factors = _rounded(gpu, x, torch.float8_e4m3fn, rounding)
    matrix = weight.plain_values(0, len(weight)).view(torch.float8_e4m3fn)
    # Without fast accumulation: its sums would have 14 bits.
    return torch._scaled_mm(
        codes,
        matrix.t(),
        scale_a=factors.unsqueeze(1),
        scale_b=weight.row_scale.unsqueeze(0),
        bias=bias,
        out_dtype=x.dtype,
        use_fast_accum=False,
    )


def _rounded(
    gpu: Gpu, x: Tensor, dtype: torch.dtype, rounding: ActivationQuantization
) -> tuple[Tensor, Tensor]:
    """Codes [n, k] of that dtype, and factors fp32 [n]."""
    n = len(x)
    codes = torch.empty(x.shape, dtype=dtype, device=x.device)
    room = -(-n // _CUTLASS_TILE) * _CUTLASS_TILE
    factors = torch.empty(room, device=x.device)[:n]
    quantize(gpu, x, codes, factors, rounding.dtype, fixed_scale=rounding.scale)
    return codes, factors
