"""Quantized matrices on a GPU: brought there as the kernels read them, and multiplied with."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear import Workspace, linear
from swiftchat.cuda.ops.linear_layout import MAX_GEMV_ROWS, linear_fits
from swiftchat.cuda.ops.quantize import dequantize
from swiftchat.cuda.packed_layout import packing_fits
from swiftchat.cuda.packed_matrix import (
    PackedMatrix,
    pack_fp8,
    pack_int4,
    pack_int8,
    pack_int8_groups,
)
from swiftchat.weights.quantization.scheme import Int4, Int8, Int8Groups, QuantizedMatrix

# Up to so many vectors the matrix is read once for every sixteen instead of made plain.
FEW_VECTORS = 64
_TILE_BYTES = 1 << 25  # of plain weights made at once: they stay in L2


def packed_matrix(
    parts: Sequence[QuantizedMatrix], dtype: torch.dtype, device: torch.device
) -> PackedMatrix | None:
    """The parts under each other, on the device, to multiply `dtype` with.

    None where they are not of one form, or of sizes that the kernels do not read.
    """

    def together(arrays: Sequence[npt.NDArray[Any]]) -> Tensor:
        # Copies: what files are mapped to cannot be written to, which torch warns of.
        return torch.cat([torch.from_numpy(np.array(array)).to(device) for array in arrays])

    first, k = parts[0], parts[0].values.shape[1]
    if len({type(part) for part in parts}) > 1:
        return None
    codes, scales = [part.values for part in parts], [part.scale for part in parts]
    if isinstance(first, Int4 | Int8Groups):
        form, columns = ("INT4", 2 * k) if isinstance(first, Int4) else ("INT8", k)
        groups = first.scale.shape[1]
        same = all(scale.shape[1] == groups for scale in scales)
        if not same or not packing_fits(form, columns, columns // groups):
            return None
        zeros = [part.zero_point for part in parts if isinstance(part, Int4 | Int8Groups)]
        in_groups = pack_int4 if isinstance(first, Int4) else pack_int8_groups
        return in_groups(together(codes), together(scales), together(zeros), dtype)
    if not packing_fits("INT8", k):  # and FP8's bytes
        return None
    pack = pack_int8 if isinstance(first, Int8) else pack_fp8
    return pack(together(codes), together(scales), dtype)


def packed_product(
    gpu: Gpu, x: Tensor, weight: PackedMatrix, bias: Tensor | None, workspace: Workspace
) -> Tensor:
    """x [n, k] · weightᵀ + bias, in x's dtype, for any number of vectors."""
    n, rows = len(x), len(weight)
    out = x.new_empty(n, rows)
    if n <= FEW_VECTORS and linear_fits(gpu, min(n, MAX_GEMV_ROWS), weight):
        for i in range(0, n, MAX_GEMV_ROWS):
            some = slice(i, i + MAX_GEMV_ROWS)
            linear(gpu, x[some], weight, out[some], workspace, bias=bias)
        return out
    step = max(8, _TILE_BYTES // (weight.shape[1] * x.itemsize) // 8 * 8)
    scratch = x.new_empty(min(rows, step), weight.shape[1])
    for start in range(0, rows, step):
        tile = weight.rows(start, min(rows, start + step))
        matrix = scratch[: len(tile)]
        dequantize(gpu, tile, matrix)
        target = out[:, start : start + step]
        if bias is None:
            torch.mm(x, matrix.t(), out=target)
        else:
            torch.addmm(bias[start : start + step], x, matrix.t(), out=target)
    return out
