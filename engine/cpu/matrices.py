"""Matrices as the native kernels read them, and the memory that holds them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from swiftchat.engine.api.tile_layout import TileLayout
from swiftchat.engine.cpu.native import Format, Matrix, Tables
from swiftchat.engine.linear.weight import dtype_name

_FLOAT_FORMATS = {
    torch.float32: Format.F32,
    torch.float16: Format.F16,
    torch.bfloat16: Format.BF16,
    torch.uint8: Format.FP8,
}


@dataclass(frozen=True)
class TiledMatrix:
    """A matrix of quantized values in tiles.

    `tiles` is uint8 [num_tiles, tile_bytes], 64-byte aligned. `row_scale` fp32 [rows] is multiplied
    with the results; None: no such factor.
    """

    layout: TileLayout
    rows: int
    tiles: Tensor
    row_scale: Tensor | None

    @property
    def cols(self) -> int:
        return self.layout.cols

    @property
    def description(self) -> str:
        group = f" in groups of {size}" if (size := self.layout.group_cols) else ""
        names = {"e8m0": "mxfp4", "e4m3": "nvfp4"}
        values = names.get(self.layout.tables, self.layout.values)
        return f"{values}{group}"

    @property
    def tensors(self) -> list[Tensor]:
        return [self.tiles] if self.row_scale is None else [self.tiles, self.row_scale]

    @cached_property
    def struct(self) -> Matrix:
        """The matrix for the kernels, valid as long as this object exists."""
        layout = self.layout
        return Matrix(
            format=Format[layout.values.upper()],
            rows=self.rows,
            cols=layout.cols,
            group_cols=layout.group_cols,
            has_minimum=layout.has_minimum,
            tables=Tables[layout.tables.upper()],
            factor_cols=layout.factor_cols,
            unit=layout.unit,
            stride=layout.tile_bytes,
            data=self.tiles.data_ptr(),
            row_scale=None if self.row_scale is None else self.row_scale.data_ptr(),
        )


@dataclass(frozen=True)
class FloatMatrix:
    """A float matrix [rows, cols], contiguous along its rows; it may be a view of a mapped file.

    `tensor` uint8 has the bits of e4m3 numbers; `group_scale` fp32 [rows, groups] multiplies equal
    groups of their columns, of a multiple of 32. `row_scale` as for `TiledMatrix`.
    """

    tensor: Tensor
    row_scale: Tensor | None = None
    group_scale: Tensor | None = None

    @property
    def rows(self) -> int:
        return self.tensor.shape[0]

    @property
    def cols(self) -> int:
        return self.tensor.shape[1]

    @property
    def description(self) -> str:
        group = f" in groups of {size}" if (size := self._group_cols) else ""
        return f"fp8{group}" if self.tensor.dtype == torch.uint8 else dtype_name(self.tensor.dtype)

    @property
    def tensors(self) -> list[Tensor]:
        tensors = self.tensor, self.row_scale, self.group_scale
        return [tensor for tensor in tensors if tensor is not None]

    @property
    def _group_cols(self) -> int:
        return 0 if self.group_scale is None else self.cols // self.group_scale.shape[1]

    @cached_property
    def struct(self) -> Matrix:
        """The matrix for the kernels, valid as long as the tensors exist."""
        tensor = self.tensor
        return Matrix(
            format=_FLOAT_FORMATS[tensor.dtype],
            rows=self.rows,
            cols=self.cols,
            group_cols=self._group_cols,
            stride=tensor.stride(0) * tensor.itemsize,
            data=tensor.data_ptr(),
            row_scale=None if self.row_scale is None else self.row_scale.data_ptr(),
            group_scale=None if self.group_scale is None else self.group_scale.data_ptr(),
        )

    def reordered(self, order: Tensor) -> Self:
        """Return a copy whose row i is row `order[i]`."""
        scales = (self.row_scale, self.group_scale)
        return type(self)(self.tensor[order], *(None if s is None else s[order] for s in scales))


NativeMatrix = TiledMatrix | FloatMatrix


def first_rows(matrices: Sequence[NativeMatrix]) -> list[int]:
    """Return the first row of each matrix where they lie one below the other, and their end."""
    return [0, *itertools.accumulate(matrix.rows for matrix in matrices)]
