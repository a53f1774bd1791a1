"""W8A8 matmuls on a GPU: few rows by the project's kernel, many by torch's 8-bit GEMMs."""

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.layout import MAX_GEMV_ROWS, linear_fits
from swiftchat.cuda.ops.linear.linear import LinearInput, linear, linear_residual
from swiftchat.cuda.ops.linear.packed_gemm import packed_gemm, packed_gemm_fits
from swiftchat.cuda.ops.linear.quantize import quantize, scale_gemm_output
from swiftchat.cuda.packed_matrix import PackedMatrix
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.linear.torch_private import matmul_fp8_cuda, matmul_int8_cuda
from swiftchat.weights.quantization.scheme import ActivationQuantization

MAX_SKINNY_ROWS = 256  # quantized activations in the weight's dtype; more: 8-bit GEMMs
_TILE_BYTES = 1 << 25  # of integer sums at a time: they stay in L2
_CUTLASS_TILE = 256  # rows; torch's GEMM may read as many scales, past the last one
_MIN_FP8_CAPABILITY = (8, 9)


def matmul_w8a8(
    kernels: LinearKernels,
    x: Tensor,
    weight: PackedMatrix,
    scheme: ActivationQuantization,
    bias: Tensor | None,
) -> Tensor | None:
    """Quantize x [n, k] to 8 bits, multiply with weight transposed, add the bias: [n, rows].

    None if there is no kernel for this combination of schemes and this number of rows. Quantized
    values are multiplied unscaled and the sums are scaled, so that results for few and for many
    rows differ by the order of the sums alone, and for fp8 by the tensor cores' precision.
    """
    n, num_rows, gpu = len(x), len(weight), kernels.gpu
    if linear_fits(gpu, n, weight, splittable=True):
        return _matmul_skinny(kernels, x, weight, scheme, bias)
    if n <= MAX_SKINNY_ROWS and packed_gemm_fits(gpu, n, weight):
        quantized, scales = _quantized(gpu, x, x.dtype, scheme)
        out, workspace = x.new_empty(n, num_rows), kernels.gemm_workspace
        packed_gemm(gpu, quantized, weight, out, workspace, bias=bias, x_scale=scales)
        return out
    schemes = weight.scheme, scheme.dtype
    if weight.shape[1] % 64 or weight.group_size:  # torch's GEMMs take neither padding nor groups
        return None
    if schemes == ("INT8", "int8") and n > MAX_GEMV_ROWS and num_rows % 8 == 0:
        return _matmul_int8(gpu, x, weight, scheme, bias)
    has_fp8 = gpu.capability >= _MIN_FP8_CAPABILITY and x.dtype == torch.bfloat16
    if schemes == ("FP8", "fp8") and has_fp8 and num_rows % 16 == 0:
        return _matmul_fp8(gpu, x, weight, scheme, bias)
    return None


def _matmul_skinny(
    kernels: LinearKernels,
    x: Tensor,
    weight: PackedMatrix,
    scheme: ActivationQuantization,
    bias: Tensor | None,
) -> Tensor | None:
    gpu, workspace = kernels.gpu, kernels.workspace
    n, num_rows = len(x), len(weight)
    quantized, scales = _quantized(gpu, x, x.dtype, scheme)
    unsplit = linear_fits(gpu, n, weight)
    if not unsplit and not workspace.has_counters(num_rows):
        return None
    # Rows too long for the kernel are split, and their sums are added in fp32.
    out = x.new_empty(n, num_rows) if unsplit else torch.zeros(n, num_rows, device=x.device)
    matmul = linear if unsplit else linear_residual
    inputs = LinearInput(quantized, bias=bias, x_scale=scales)
    matmul(gpu, inputs, weight, out, workspace)
    return out.to(x.dtype)


def _matmul_int8(
    gpu: Gpu, x: Tensor, weight: PackedMatrix, scheme: ActivationQuantization, bias: Tensor | None
) -> Tensor:
    n, num_rows, row_scale = len(x), len(weight), weight.row_scale
    assert row_scale is not None
    quantized, scales = _quantized(gpu, x, torch.int8, scheme)
    out = x.new_empty(n, num_rows)
    step = min(num_rows, max(8, _TILE_BYTES // (4 * n) // 8 * 8))
    scratch = torch.empty(n * step, dtype=torch.int32, device=x.device)
    for first in range(0, num_rows, step):
        tile = weight.plain_values(first, min(num_rows, first + step)).view(torch.int8)
        sums = scratch[: n * len(tile)].view(n, len(tile))
        matmul_int8_cuda(quantized, tile.t(), sums)
        scale_gemm_output(gpu, sums, scales, row_scale, out, first, bias=bias)
    return out


def _matmul_fp8(
    gpu: Gpu, x: Tensor, weight: PackedMatrix, scheme: ActivationQuantization, bias: Tensor | None
) -> Tensor:
    quantized, scales = _quantized(gpu, x, torch.float8_e4m3fn, scheme)
    values = weight.plain_values(0, len(weight)).view(torch.float8_e4m3fn)
    assert weight.row_scale is not None
    weight_scale = weight.row_scale.unsqueeze(0)
    return matmul_fp8_cuda(quantized, values.t(), scales.unsqueeze(1), weight_scale, bias, x.dtype)


def _quantized(
    gpu: Gpu, x: Tensor, dtype: torch.dtype, scheme: ActivationQuantization
) -> tuple[Tensor, Tensor]:
    """Quantized values [n, k] of that dtype, and scales fp32 [n]."""
    n = len(x)
    quantized = torch.empty(x.shape, dtype=dtype, device=x.device)
    capacity = -(-n // _CUTLASS_TILE) * _CUTLASS_TILE
    scales = torch.empty(capacity, device=x.device)[:n]
    quantize(gpu, x, quantized, scales, scheme.dtype, fixed_scale=scheme.scale)
    return quantized, scales
