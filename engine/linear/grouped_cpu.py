"""Weights of 4 and 8 bits with a scale and a zero point for each group of columns, on the CPU.

`docs/notes/packed-layouts.md` has a picture of each packed layout. For a few rows of bfloat16
torch's int4 operator is the fastest; for more, and for other dtypes, one tile of the matrix at a
time is dequantized and multiplied by torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swiftchat.engine.linear.half_gemm import gemm_dtype, has_fast_gemm, matmul_tiles
from swiftchat.engine.linear.tiles import BLOCK_ROWS, TILE_ELEMENTS, concatenated, tile_rows
from swiftchat.engine.linear.torch_private import matmul_int4_cpu, pack_int4_cpu
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.weights.quantization.scheme import Int4, Int8Groups

# Up to here torch's int4 operator is faster than a fast bf16 GEMM and than fp32 tiles; measured
# with SmolLM2's shapes.
_MAX_ROWS_PACKED, _MAX_ROWS_PACKED_FP32 = 64, 32
_GROUP_SIZES = (32, 64, 128, 256)  # of torch's operator

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Int4Weight(LinearWeight):
    """4-bit values in torch's packed order, with a scale and a zero point per group of columns.

    `packed` uint8 [rows, columns / 2], the shape that torch's operator takes, holds blocks
    [rows / 64, columns, 32]; rows are padded to whole blocks. `scale_and_zero` [groups, rows, 2]
    has the activations' dtype: weight = (q - 8) * scale + zero. With `integer_zeros` the zero is a
    multiple of the scale, apart from its rounding.
    """

    num_rows: int
    num_columns: int
    packed: Tensor
    scale_and_zero: Tensor
    group_size: int
    integer_zeros: bool

    supports_rows: ClassVar[bool] = True

    @classmethod
    def from_parts(cls, parts: Sequence[Int4], dtype: torch.dtype) -> "Int4Weight | None":
        """Join the parts; None if torch has no operator for their groups or this processor."""
        joined = _concatenate(parts, 2)
        if joined is None:
            return None
        values, scale, zero = joined

        def unpacked(start: int, stop: int) -> Bytes:
            return np.stack([values[start:stop] & 15, values[start:stop] >> 4], 2)

        return cls.pack((len(values), 2 * values.shape[1]), unpacked, scale, zero, dtype)

    @classmethod
    def pack(
        cls,
        shape: tuple[int, int],
        values: Callable[[int, int], Bytes],
        scale: Floats,
        zero: Floats,
        dtype: torch.dtype,
    ) -> "Int4Weight":
        """Pack the bytes that `values(start, stop)` returns for these rows, one a value.

        In numpy: torch's threads do not speed this up, and wait for busy cores.
        """
        num_rows, num_columns = shape
        order = _row_order()
        assert order is not None
        block, padding = len(order), -num_rows % BLOCK_ROWS
        num_blocks = (num_rows + padding) // BLOCK_ROWS
        packed = np.empty((num_blocks, num_columns, BLOCK_ROWS // 2), np.uint8)
        step = max(1, TILE_ELEMENTS // (num_columns * BLOCK_ROWS))
        for start in range(0, num_blocks, step):
            tile = values(start * BLOCK_ROWS, (start + step) * BLOCK_ROWS).reshape(-1, num_columns)
            padded = np.pad(tile, ((0, -len(tile) % BLOCK_ROWS), (0, 0)))
            in_order = padded.reshape(-1, block, num_columns)[:, list(order)]
            low, high = np.split(in_order, 2, 1)
            both = (low | high << np.uint8(4)).transpose(0, 2, 1)
            packed[start : start + step] = both.reshape(-1, num_columns, BLOCK_ROWS // 2)
        table = np.zeros((scale.shape[1], num_rows + padding, 2), np.float32)
        table[:, :num_rows, 0], table[:, :num_rows, 1] = scale.T, (scale * (8 - zero)).T
        return cls(
            num_rows,
            num_columns,
            torch.from_numpy(packed.reshape(-1, num_columns // 2)),
            torch.from_numpy(table).to(dtype),
            num_columns // len(table),
            bool((zero == np.rint(zero)).all()),
        )

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_rows, self.num_columns

    @property
    def dtype(self) -> torch.dtype:
        return self.scale_and_zero.dtype

    @property
    def description(self) -> str:
        return f"int4 in groups of {self.group_size}, torch"

    @property
    def tensors(self) -> list[Tensor]:
        return [self.packed, self.scale_and_zero]

    @property
    def owned_tensors(self) -> list[Tensor]:
        return self.tensors

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if _is_for_packed_operator(x):
            out = matmul_int4_cpu(x, self.packed, self.group_size, self.scale_and_zero)
            if out.shape[1] != self.num_rows:
                out = out[:, : self.num_rows]
            return out if bias is None else out + bias
        dtype = gemm_dtype(x)

        def tile(rows: slice) -> Tensor:
            return self.dequantized(rows, dtype).t()

        return matmul_tiles(x, self.num_rows, tile_rows(self.shape), tile, bias=bias)

    def dequantized(self, rows: slice, dtype: torch.dtype) -> Tensor:
        """Dequantize and transpose rows, the first a multiple of 64: [columns, rows] in `dtype`."""
        order = _row_order()
        assert order is not None
        columns, block = self.num_columns, len(order)
        padded = slice(rows.start, -(-rows.stop // BLOCK_ROWS) * BLOCK_ROWS)
        packed = self.packed[padded].view(-1, columns, block // 2)
        table = self.scale_and_zero[:, padded].to(dtype)
        matrix = torch.empty(columns, len(packed), block, dtype=dtype)
        low, high = ((half.view(torch.int8) - 8) for half in (packed & 15, packed >> 4))
        matrix[..., : block // 2] = low.transpose(0, 1)
        matrix[..., block // 2 :] = high.transpose(0, 1)
        if order != tuple(range(block)):
            matrix = matrix[..., _places()]
        by_group = matrix.view(len(table), self.group_size, -1)
        # As two tensors: interleaved scales and zeros take four times as long to multiply with.
        scale, zero = table.unsqueeze(1).movedim(-1, 0).contiguous()
        matrix = self._scale_(by_group, scale, zero).reshape(columns, -1)
        return matrix[:, : rows.stop - rows.start]

    def rows(self, ids: Tensor) -> Tensor:
        places = _places()
        columns, block = self.num_columns, len(places)
        place = places[ids % block]
        packed = self.packed.view(-1, columns, block // 2)
        bytes_ = packed[ids // block, :, place % (block // 2)]
        shifts = (place // (block // 2)).mul_(4).to(torch.uint8).unsqueeze(1)
        values = (bytes_ >> shifts).bitwise_and_(15).view(torch.int8).sub_(8)
        table = self.scale_and_zero[:, ids].transpose(0, 1).unsqueeze(2)
        by_group = values.to(table.dtype).view(len(ids), table.shape[1], -1)
        return self._scale_(by_group, *table.unbind(-1)).reshape(len(ids), columns)

    def _scale_(self, values: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        """Return values * scale + zero, in place; scales and zeros are broadcast."""
        if not self.integer_zeros:
            return torch.addcmul(zero, values, scale, out=values)
        # Exact, even if the table was rounded.
        integer = torch.where(scale == 0, 0, (zero / scale).round_())
        return values.add_(integer).mul_(scale)


@dataclass(frozen=True)
class Int8GroupsWeight(LinearWeight):
    """8-bit values with a scale for each group of columns, as two int4 matrices.

    A value is 16 * (its upper half - 8) + its lower half. Torch has no operator for int8 groups, so
    `halves` [rows, 2 * columns], the upper ones before the lower ones, is multiplied with every
    row of activations twice.
    """

    halves: Int4Weight

    supports_rows: ClassVar[bool] = True

    @classmethod
    def from_parts(
        cls, parts: Sequence[Int8Groups], dtype: torch.dtype
    ) -> "Int8GroupsWeight | None":
        """Join the parts; None if torch has no operator for their groups or this processor."""
        joined = _concatenate(parts, 1)
        if joined is None:
            return None
        values, scale, zero = joined

        def halves(start: int, stop: int) -> Bytes:
            return np.concatenate([values[start:stop] >> 4, values[start:stop] & 15], 1)

        scale = np.concatenate([16 * scale, scale], 1)
        zero = np.concatenate([np.full_like(zero, 8), zero - 128], 1)
        shape = len(values), 2 * values.shape[1]
        return cls(Int4Weight.pack(shape, halves, scale, zero, dtype))

    @property
    def shape(self) -> tuple[int, int]:
        return self.halves.num_rows, self.halves.num_columns // 2

    @property
    def dtype(self) -> torch.dtype:
        return self.halves.dtype

    @property
    def description(self) -> str:
        return f"int8 in groups of {self.halves.group_size}, torch"

    @property
    def tensors(self) -> list[Tensor]:
        return self.halves.tensors

    @property
    def owned_tensors(self) -> list[Tensor]:
        return self.tensors

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if _is_for_packed_operator(x):
            return self.halves.matmul(torch.cat([x, x], 1), bias)
        dtype = gemm_dtype(x)

        def tile(rows: slice) -> Tensor:
            upper, lower = self.halves.dequantized(rows, dtype).chunk(2)
            return upper.add_(lower).t()

        return matmul_tiles(x, self.shape[0], tile_rows(self.halves.shape), tile, bias=bias)

    def rows(self, ids: Tensor) -> Tensor:
        upper, lower = self.halves.rows(ids).chunk(2, 1)
        return upper + lower


def _is_for_packed_operator(x: Tensor) -> bool:
    """Return whether torch's int4 operator takes x [n, columns] and is the fastest for its rows."""
    max_rows = _MAX_ROWS_PACKED if has_fast_gemm(x.dtype) else _MAX_ROWS_PACKED_FP32
    return x.dtype == torch.bfloat16 and x.shape[0] <= max_rows


def _concatenate(
    parts: Sequence[Int4 | Int8Groups], values_per_byte: int
) -> tuple[Bytes, Floats, Floats] | None:
    """Return values, scales and zero points of all parts; None without an operator for them."""
    num_groups = parts[0].scale.shape[1]
    group_size = values_per_byte * parts[0].values.shape[1] // num_groups
    if any(part.scale.shape[1] != num_groups for part in parts):
        return None
    if group_size not in _GROUP_SIZES or _row_order() is None:
        return None
    values = concatenated([part.values for part in parts])
    scale, zero = (
        np.concatenate(tables)
        for tables in ([part.scale for part in parts], [part.zero_point for part in parts])
    )
    return values, scale, zero


@cache
def _row_order() -> tuple[int, ...] | None:
    """Return the row of a block that each half byte of a column holds, low halves first.

    Torch packs 64, 32 or 16 rows together, depending on the width of the processor's vectors; its
    order is found by packing row numbers. None if that order is unknown, or if torch's operator is
    a plain loop, as on ARM, which is many times slower than a bfloat16 matmul.
    """
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return None
    columns = 32
    rows = torch.arange(BLOCK_ROWS, dtype=torch.int32).unsqueeze(1).expand(BLOCK_ROWS, columns)
    low, high = (pack_int4_cpu(half.contiguous()).view(-1) for half in (rows & 15, rows >> 4))
    found = torch.stack([(low & 15) | (high & 15) << 4, (low >> 4) | (high >> 4) << 4])
    for block in (64, 32, 16):
        shaped = found.view(2, BLOCK_ROWS // block, columns, block // 2)
        first = shaped[:, 0, 0].reshape(-1)
        starts = torch.arange(0, BLOCK_ROWS, block).view(1, -1, 1, 1)
        expected = first.view(2, 1, 1, -1) + starts
        if torch.equal(shaped, expected.expand_as(shaped).to(shaped.dtype)):
            return tuple(first.tolist())
    return None


@cache
def _places() -> Tensor:
    """Return the half byte of a column that has each row of a block: `_row_order` inverted."""
    order = _row_order()
    assert order is not None
    return torch.tensor(order).argsort()
