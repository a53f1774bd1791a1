"""8-bit activations and packed weights outside `linear`: quantize, dequantize, scale results.

The kernels are `quantize.cu`, `dequantize.cu` and `scale_gemm_output.cu` in `kernels/linear/`.
"""

from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.packed_layout import PACKED_SCHEMES, padded_columns
from swiftchat.cuda.packed_matrix import PackedMatrix, storage_macros

_THREADS = 256
_DEQUANTIZE_BLOCKS_PER_SM = 16
SCHEMES = ("int8", "fp8")


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
    if scheme not in SCHEMES or k == 0 or k % 8:
        raise ValueError(f"rows of {k} elements cannot be quantized to {scheme}")
    if fixed_scale is not None and not fixed_scale > 0:
        raise ValueError(f"fixed_scale must be above 0, not {fixed_scale}")
    per_thread = -(-k // (8 * _THREADS))
    vectors = 2 if per_thread <= 2 else 8 if per_thread <= 8 else 0
    kernel = gpu.kernel(
        "quantize",
        DTYPE=x.dtype,
        SCHEME=scheme.upper(),
        AS_T=values.dtype == x.dtype,
        VECTORS=vectors,
    )
    kernel(
        n,
        _THREADS,
        num_bytes=x.nbytes + values.nbytes,
        x=x,
        values=values,
        scales=scales,
        fixed_scale=fixed_scale or 0.0,
    )


def dequantize(gpu: Gpu, matrix: PackedMatrix, out: Tensor) -> None:
    """Write the matrix to out [rows, k] of its dtype; each weight is rounded once."""
    kernel = gpu.kernel("dequantize", **storage_macros(matrix))
    rows, k = matrix.shape
    if rows == 0:
        return
    blocks, most = len(matrix.tiles), _DEQUANTIZE_BLOCKS_PER_SM * gpu.num_sms
    tiles = padded_columns(matrix.scheme, k) // PACKED_SCHEMES[matrix.scheme].tile_columns
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
    if first % 4 or width % 4 or rows % 4 or first + width > rows:
        raise ValueError(f"{n} × {width} products do not fit {rows} columns from {first} on")
    gpu.kernel("scale_gemm_output", DTYPE=out.dtype)(
        (-(-width // (4 * _THREADS)), n),
        _THREADS,
        num_bytes=products.nbytes + products.numel() * out.itemsize,
        products=products,
        x_scale=x_scale,
        row_scale=row_scale,
        bias=bias,
        out=out,
        first=first,
    )
