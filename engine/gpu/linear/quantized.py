"""Quantized weights on a GPU: packed as the kernels read them, and multiplied."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swiftchat.cuda.ops.layers.embedding import embed
from swiftchat.cuda.ops.linear.layout import linear_fits
from swiftchat.cuda.ops.linear.linear import LinearInput, linear
from swiftchat.cuda.ops.linear.packed_gemm import packed_gemm, packed_gemm_fits
from swiftchat.cuda.ops.linear.quantize import dequantize
from swiftchat.cuda.packed_layout import packed_group_size, packing_fits
from swiftchat.cuda.packed_matrix import (
    LARGEST_MXFP4_SCALE,
    Matrix,
    PackedMatrix,
    pack_fp8,
    pack_int4,
    pack_int8,
    pack_int8_groups,
    pack_mxfp4,
    pack_nvfp4,
)
from swiftchat.engine.gpu.linear.plain import LinearKernels, matmul_rounded
from swiftchat.engine.gpu.linear.w8a8 import matmul_w8a8
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.weights.quantization.scheme import (
    ActivationQuantization,
    Float8,
    Int4,
    Int8,
    Int8Groups,
    Mxfp4,
    Nvfp4,
    QuantizedMatrix,
)

_TILE_BYTES = 1 << 25  # of weights dequantized at a time: they stay in L2
_ALIGNED_ROWS = 256


@dataclass(frozen=True)
class GpuQuantizedWeight(LinearWeight):
    """A matrix in any scheme that the kernels read: `PackedMatrix`."""

    matrix: PackedMatrix
    kernels: LinearKernels

    supports_rows: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.matrix.dtype

    @property
    def description(self) -> str:
        group = f" in groups of {size}" if (size := self.matrix.group_size) else ""
        return f"{self.matrix.scheme.lower()}{group}, CUDA kernels"

    @property
    def tensors(self) -> list[Tensor]:
        return self.matrix.tensors

    @property
    def kernel_matrices(self) -> Sequence[Matrix]:
        return (self.matrix,)

    def rows(self, ids: Tensor) -> Tensor:
        out = torch.empty(len(ids), self.shape[1], device=ids.device)
        embed(self.kernels.gpu, ids.int(), self.matrix, out)
        return out

    def reordered(self, order: Tensor) -> Self:
        return replace(self, matrix=self.matrix.reordered(order))

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Few rows: `linear`. Some hundred: `packed_gemm`. More: dequantize tiles for cuBLAS."""
        gpu, matrix, n = self.kernels.gpu, self.matrix, len(x)
        if linear_fits(gpu, n, matrix):
            out = x.new_empty(n, len(matrix))
            linear(gpu, LinearInput(x, bias=bias), matrix, out, self.kernels.workspace)
            return out
        if not packed_gemm_fits(gpu, n, matrix):
            return self._matmul_tiles(x, bias)
        out = x.new_empty(n, len(matrix))
        packed_gemm(gpu, x, matrix, out, self.kernels.gemm_workspace, bias=bias)
        return out

    def matmul_fp32(self, x: Tensor) -> Tensor:
        gpu, matrix = self.kernels.gpu, self.matrix
        if not linear_fits(gpu, len(x), matrix):
            return self.matmul(x).float()
        out = torch.empty(len(x), len(matrix), device=gpu.device)
        linear(gpu, LinearInput(x), matrix, out, self.kernels.workspace)
        return out

    def matmul_w8a8(
        self, x: Tensor, scheme: ActivationQuantization, bias: Tensor | None = None
    ) -> Tensor:
        out = matmul_w8a8(self.kernels, x, self.matrix, scheme, bias)
        return matmul_rounded(self, x, scheme, bias) if out is None else out

    def _matmul_tiles(self, x: Tensor, bias: Tensor | None) -> Tensor:
        num_rows, num_columns = self.shape
        out = x.new_empty(len(x), num_rows)
        # Tiles of about the same size, which fill whole tiles of cuBLAS.
        num_tiles = -(-num_rows * num_columns * x.itemsize // _TILE_BYTES)
        step = -(-num_rows // num_tiles // _ALIGNED_ROWS) * _ALIGNED_ROWS
        scratch = x.new_empty(min(num_rows, step), num_columns)
        for start in range(0, num_rows, step):
            tile = self.matrix.rows(start, min(num_rows, start + step))
            plain = scratch[: len(tile)]
            dequantize(self.kernels.gpu, tile, plain)
            target = out[:, start : start + step]
            if bias is None:
                torch.mm(x, plain.t(), out=target)
            else:
                torch.addmm(bias[start : start + step], x, plain.t(), out=target)
        return out


def packed_matrix(
    parts: Sequence[QuantizedMatrix], dtype: torch.dtype, device: torch.device
) -> PackedMatrix | None:
    """Pack the parts, one below the other, on the device, for activations of `dtype`.

    None if they differ in scheme or group size, or if the kernels do not read their sizes.
    """
    scheme = type(parts[0])
    if any(type(part) is not scheme for part in parts):
        return None
    return _PACK[scheme](parts, dtype, device)


def _pack_int8(
    parts: Sequence[Int8], dtype: torch.dtype, device: torch.device
) -> PackedMatrix | None:
    if not packing_fits("INT8", parts[0].values.shape[1]):
        return None
    values, scales = ([part.values for part in parts], [part.scale for part in parts])
    return pack_int8(_upload(values, device), _upload(scales, device), dtype)


def _pack_fp8(
    parts: Sequence[Float8], dtype: torch.dtype, device: torch.device
) -> PackedMatrix | None:
    columns, groups = parts[0].values.shape[1], parts[0].scale.shape[1]
    has_same_groups = all(part.scale.shape[1] == groups for part in parts)
    group_size = columns // groups if groups > 1 else 0
    if not has_same_groups or packed_group_size("FP8", columns, group_size) is None:
        return None
    scales = [part.scale if groups > 1 else part.scale[:, 0] for part in parts]
    return pack_fp8(
        _upload([part.values for part in parts], device), _upload(scales, device), dtype
    )


def _pack_groups(
    scheme: str,
    values_per_byte: int,
    pack: Callable[[Tensor, Tensor, Tensor, torch.dtype], PackedMatrix],
    parts: Sequence[Int4 | Int8Groups],
    dtype: torch.dtype,
    device: torch.device,
) -> PackedMatrix | None:
    columns = values_per_byte * parts[0].values.shape[1]
    groups = parts[0].scale.shape[1]
    has_same_groups = all(part.scale.shape[1] == groups for part in parts)
    if not has_same_groups or packed_group_size(scheme, columns, columns // groups) is None:
        return None
    return pack(
        _upload([part.values for part in parts], device),
        _upload([part.scale for part in parts], device),
        _upload([part.zero_point for part in parts], device),
        dtype,
    )


def _pack_mxfp4(
    parts: Sequence[Mxfp4], dtype: torch.dtype, device: torch.device
) -> PackedMatrix | None:
    columns, groups = 2 * parts[0].values.shape[1], parts[0].scale.shape[1]
    is_small = all(int(part.scale.max()) <= LARGEST_MXFP4_SCALE for part in parts)
    has_same_groups = all(part.scale.shape[1] == groups for part in parts)
    if not (is_small and has_same_groups and packing_fits("MXFP4", columns, columns // groups)):
        return None
    values, scales = ([part.values for part in parts], [part.scale for part in parts])
    return pack_mxfp4(_upload(values, device), _upload(scales, device), dtype)


def _pack_nvfp4(
    parts: Sequence[Nvfp4], dtype: torch.dtype, device: torch.device
) -> PackedMatrix | None:
    columns, groups = 2 * parts[0].values.shape[1], parts[0].scale.shape[1]
    has_same_groups = all(part.scale.shape[1] == groups for part in parts)
    if not (has_same_groups and packing_fits("NVFP4", columns, columns // groups)):
        return None
    values, scales = ([part.values for part in parts], [part.scale for part in parts])
    row_scales = _upload([part.row_scale for part in parts], device)
    return pack_nvfp4(_upload(values, device), _upload(scales, device), row_scales, dtype)


_PACK: Mapping[type[QuantizedMatrix], Callable[..., PackedMatrix | None]] = MappingProxyType(
    {
        Int8: _pack_int8,
        Float8: _pack_fp8,
        Int4: partial(_pack_groups, "INT4", 2, pack_int4),
        Int8Groups: partial(_pack_groups, "INT8", 1, pack_int8_groups),
        Mxfp4: _pack_mxfp4,
        Nvfp4: _pack_nvfp4,
    }
)


def _upload(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> Tensor:
    """Return the arrays one below the other, on the device."""
    # Copies: mapped files are read-only, and torch warns of tensors that cannot be written to.
    return torch.cat([torch.from_numpy(np.array(array)).to(device) for array in arrays])
