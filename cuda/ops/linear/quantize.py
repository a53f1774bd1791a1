"""8-bit activations and packed weights outside `linear`: quantize, dequantize, scale results.

The kernels are `quantize.cu`, `dequantize.cu` and `scale_gemm_output.cu` in `kernels/linear/`.
"""

import torch
from torch import Tensor

from swiftchat.cuda.checks import MAX_GRID_Y, check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.packed_layout import GROUP_SIZES, TILE_COLUMNS, padded_columns
from swiftchat.cuda.packed_matrix import PackedMatrix

_THREADS = 256
_DEQUANTIZE_BLOCKS_PER_SM = 16
_VALUE_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def _quantize_spec(dtype: str, scheme: str, dequantized: bool, vectors: int) -> KernelSpec:
    arguments = "pointer x, pointer values, pointer scales, int k, float fixed_scale"
    defines = {
        "DTYPE": dtype,
        "SCHEME": scheme.upper(),
        "AS_T": str(int(dequantized)),
        "VECTORS": str(vectors),
    }
    return KernelSpec("quantize", arguments, defines)


def _dequantize_spec(dtype: str, scheme: str, group_size: int) -> KernelSpec:
    arguments = "pointer tiles, pointer row_scale, pointer out, int rows, int k"
    defines = {"DTYPE": dtype, "SCHEME": scheme, "GROUP_SIZE": str(group_size)}
    return KernelSpec("dequantize", arguments, defines)


def _scale_spec(dtype: str) -> KernelSpec:
    arguments = (
        "pointer products, pointer x_scale, pointer row_scale, pointer bias, pointer out, "
        "int width, int first, int rows"
    )
    return KernelSpec("scale_gemm_output", arguments, {"DTYPE": dtype})


_DTYPES = list(DTYPE_NAMES.values())
_PACKED = [("INT8", 0), ("FP8", 0), *((s, size) for s in GROUP_SIZES for size in GROUP_SIZES[s])]
VARIANTS = [
    # Each way of reading a row with each scheme. One dtype for each is enough.
    *(
        _quantize_spec(_DTYPES[(i + j) % 3], scheme, i % 2 == 1, (2, 8, 0)[i])
        for i in range(3)
        for j, scheme in enumerate(_VALUE_DTYPES)
    ),
    *(_dequantize_spec(dtype, *packing) for packing in _PACKED for dtype in _DTYPES),
    *(_scale_spec(dtype) for dtype in _DTYPES),
]


def quantize(
    gpu: Gpu,
    x: Tensor,
    values: Tensor,
    scales: Tensor,
    scheme: str,
    *,
    fixed_scale: float | None = None,
) -> None:
    """Quantize each row of x [n, k] to values [n, k] and scales fp32 [n]; x ≈ values · scales.

    `scheme` is int8 or fp8 (e4m3). `values` has that dtype, or x's dtype with the same values. A
    scale is the row's largest magnitude / 127.5 or 448, or `fixed_scale` for all rows, which must
    be above 0. k must be a multiple of 8.
    """
    n, k = x.shape
    if scheme not in _VALUE_DTYPES or k == 0 or k % 8:
        raise ValueError(f"rows of {k} elements cannot be quantized to {scheme}")
    if fixed_scale is not None and not fixed_scale > 0:
        raise ValueError(f"fixed_scale must be above 0, not {fixed_scale}")
    dequantized = values.dtype == x.dtype
    check_tensor("x", x, (n, k), x.dtype, gpu)
    check_tensor("values", values, (n, k), x.dtype if dequantized else _VALUE_DTYPES[scheme], gpu)
    check_tensor("scales", scales, (n,), torch.float32, gpu)
    per_thread = -(-k // (8 * _THREADS))
    vectors = 2 if per_thread <= 2 else 8 if per_thread <= 8 else 0
    kernel = gpu.kernel(_quantize_spec(DTYPE_NAMES[x.dtype], scheme, dequantized, vectors))
    if n == 0:
        return
    kernel(
        n,
        _THREADS,
        num_bytes=x.nbytes + values.nbytes,
        x=x,
        values=values,
        scales=scales,
        k=k,
        fixed_scale=fixed_scale or 0.0,
    )


def dequantize(gpu: Gpu, matrix: PackedMatrix, out: Tensor) -> None:
    """Write the matrix to out [rows, k] of its dtype; each weight is rounded once."""
    matrix.check(gpu)
    check_tensor("out", out, matrix.shape, matrix.dtype, gpu)
    rows, k = matrix.shape
    dtype = DTYPE_NAMES[matrix.dtype]
    kernel = gpu.kernel(_dequantize_spec(dtype, matrix.scheme, matrix.group_size))
    if rows == 0:
        return
    blocks, most = len(matrix.tiles), _DEQUANTIZE_BLOCKS_PER_SM * gpu.num_sms
    tiles = padded_columns(matrix.scheme, k) // TILE_COLUMNS[matrix.scheme]
    parts = max(1, min(most // blocks, -(-tiles // (_THREADS // 32))))
    kernel(
        (min(blocks, most), parts),
        _THREADS,
        num_bytes=matrix.nbytes + out.nbytes,
        tiles=matrix.tiles,
        row_scale=matrix.row_scale,
        out=out,
        rows=rows,
        k=k,
    )


def scale_gemm_output(
    gpu: Gpu,
    products: Tensor,
    x_scale: Tensor,
    row_scale: Tensor,
    out: Tensor,
    first: int,
    *,
    bias: Tensor | None = None,
) -> None:
    """Scale int32 GEMM results [n, width] into the columns of out [n, rows] from `first` on.

    Each is multiplied by `x_scale` fp32 [n] of its activation row and by `row_scale` fp32 [rows] of
    its weight row; then `bias` [rows] is added.
    """
    (n, width), rows = products.shape, out.shape[1]
    if first % 4 or width % 4 or rows % 4 or first + width > rows or n > MAX_GRID_Y:
        raise ValueError(f"{n} × {width} products do not fit {rows} columns from {first} on")
    check_tensor("products", products, (n, width), torch.int32, gpu)
    check_tensor("x_scale", x_scale, (n,), torch.float32, gpu)
    check_tensor("row_scale", row_scale, (rows,), torch.float32, gpu)
    check_tensor("bias", bias, (rows,), out.dtype, gpu)
    check_tensor("out", out, (n, rows), out.dtype, gpu)
    kernel = gpu.kernel(_scale_spec(DTYPE_NAMES[out.dtype]))
    if n == 0 or width == 0:
        return
    kernel(
        (-(-width // (4 * _THREADS)), n),
        _THREADS,
        num_bytes=products.nbytes + products.numel() * out.itemsize,
        products=products,
        x_scale=x_scale,
        row_scale=row_scale,
        bias=bias,
        out=out,
        width=width,
        first=first,
        rows=rows,
    )
