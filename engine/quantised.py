"""Matrices that the engine multiplies with packed, one class for each form, on the CPU; on GPUs
they are `cuda.packed_matrix`'s.

`docs/quantisation.md` has a picture of each. Torch's packed operators are the fastest there are
for a few rows of bfloat16; for more, and for other dtypes, a tile of the matrix at a time is
decoded and multiplied with in the usual way. Neither ever has the whole matrix decoded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.packed_matrix import Matrix, PackedMatrix
from swiftchat.errors import DeviceError
from swiftchat.weights.kept import Int4, Int8, Kept

# Up to so many rows torch's packed operator is the faster way; measured with SmolLM2's shapes.
_FEW_ROWS_INT4 = 64
_FEW_ROWS_INT8 = 16
_TILE_ELEMENTS = 1 << 19
_BLOCK = 64  # rows of an int4 matrix that torch packs together at most
_KERNEL_GROUPS = (32, 64, 128, 256)


class PackedWeight(Protocol):
    """A matrix [rows, columns], outputs by inputs, in fewer bits."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def tensors(self) -> list[Tensor]: ...
    def product(self, x: Tensor) -> Tensor:
        """x [n, columns] times the matrix transposed: [n, rows], in x's dtype."""


# What a decoder has: the kernels' packed matrices on a GPU, the classes here on the CPU.
Weight = Tensor | PackedWeight | PackedMatrix


def packed_weight(parts: Sequence[Kept], dtype: torch.dtype) -> PackedWeight | None:
    """The parts under each other as one matrix to multiply `dtype` with.

    None where they are not of one form, or of one that no class here computes with.
    """
    first = parts[0]
    if len({type(part) for part in parts}) > 1:
        return None
    scale = np.concatenate([part.scale for part in parts])
    if isinstance(first, Int4):
        if len({part.scale.shape[1] for part in parts}) > 1:
            return None
        codes = np.concatenate([part.codes for part in parts])
        zero = np.concatenate([part.zero for part in parts if isinstance(part, Int4)])
        return Int4Weight.packed(Int4(codes, scale, zero), dtype)
    one = parts[0].codes if len(parts) == 1 else np.concatenate([part.codes for part in parts])
    # A view of the file where it is one part that needs no change.
    numbers, factors = torch.from_numpy(one), torch.from_numpy(np.ascontiguousarray(scale))
    if isinstance(first, Int8):
        return Int8Weight(numbers, factors)
    return Float8Weight(numbers.view(torch.int8), factors)


@dataclass(frozen=True)
class Int8Weight:
    """`numbers` int8 [rows, columns], as they lie in the file; `scale` fp32 [rows]."""

    numbers: Tensor
    scale: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.numbers.shape[0], self.numbers.shape[1]

    @property
    def tensors(self) -> list[Tensor]:
        return [self.numbers, self.scale]

    def product(self, x: Tensor) -> Tensor:
        if x.dtype == torch.bfloat16 and len(x) <= _FEW_ROWS_INT8:
            return torch._weight_int8pack_mm(x, self.numbers, self.scale.to(x.dtype))
        tiles = torch.split(self.numbers, _tile_rows(self.shape))
        product = torch.cat([_times(x, tile.to(x.dtype)) for tile in tiles], 1)
        return (product.float() * self.scale).to(x.dtype)


@dataclass(frozen=True)
class Float8Weight:
    """`numbers` e4m3 as int8 of their bits [rows, columns]; `scale` fp32 [rows]."""

    numbers: Tensor
    scale: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.numbers.shape[0], self.numbers.shape[1]

    @property
    def tensors(self) -> list[Tensor]:
        return [self.numbers, self.scale]

    def product(self, x: Tensor) -> Tensor:
        tiles = torch.split(self.numbers, _tile_rows(self.shape))
        product = torch.cat([_times(x, decoded_e4m3(tile).to(x.dtype)) for tile in tiles], 1)
        return (product.float() * self.scale).to(x.dtype)


def decoded_e4m3(numbers: Tensor) -> Tensor:
    """e4m3 numbers, as int8 of their bits, in bfloat16, exactly; not for those that are none.

    Moved to bfloat16's place, exponent and fraction mean the same numbers times 2^−120, those
    below the smallest power too. Torch's own conversion takes three times as long.
    """
    bits = numbers.to(torch.int16).bitwise_left_shift_(4).bitwise_and_(-0x7810)
    return bits.view(torch.bfloat16).mul_(2.0**120)


@dataclass(frozen=True)
class Int4Weight:
    """Numbers of 4 bits in torch's packed order, groups of columns with a factor and a zero.

    `numbers` uint8 [rows/64, columns, 32], rows filled up to whole blocks; `scale_and_zero`
    [groups, rows, 2], so that weight = (q − 8)·scale + zero, in the dtype computed in.
    """

    shape: tuple[int, int]
    numbers: Tensor
    scale_and_zero: Tensor

    @classmethod
    def packed(cls, kept: Int4, dtype: torch.dtype) -> "Int4Weight | None":
        rows, half = kept.codes.shape
        columns, groups = 2 * half, kept.scale.shape[1]
        if columns // groups not in _KERNEL_GROUPS or _row_order() is None:
            return None
        spare = -rows % _BLOCK
        scale, zero = (torch.from_numpy(np.ascontiguousarray(t.T)) for t in (kept.scale, kept.zero))
        table = torch.stack([scale, scale * (8 - zero)], 2)
        packed = torch.empty((rows + spare) // _BLOCK, columns, _BLOCK // 2, dtype=torch.uint8)
        # As integers of four bytes each, as the operator wants them, only a tile at a time.
        step = max(1, _TILE_ELEMENTS // (columns * _BLOCK))
        for block in range(0, len(packed), step):
            codes = torch.from_numpy(kept.codes[block * _BLOCK : (block + step) * _BLOCK])
            wide = torch.stack([codes & 15, codes >> 4], 2).view(len(codes), columns).int()
            wide = F.pad(wide, (0, 0, 0, -len(wide) % _BLOCK))
            made = torch.ops.aten._convert_weight_to_int4pack_for_cpu(wide, 1)
            packed[block : block + step] = made.view(-1, columns, _BLOCK // 2)
        table = F.pad(table, (0, 0, 0, spare)).to(dtype)
        return cls((rows, columns), packed, table)

    @property
    def tensors(self) -> list[Tensor]:
        return [self.numbers, self.scale_and_zero]

    def product(self, x: Tensor) -> Tensor:
        rows, columns = self.shape
        if x.dtype == torch.bfloat16 and len(x) <= _FEW_ROWS_INT4:
            product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
                x, self.numbers.view(-1, columns // 2),
                columns // len(self.scale_and_zero), self.scale_and_zero,
            )  # fmt: skip
            return product if product.shape[1] == rows else product[:, :rows]
        step = max(1, _tile_rows(self.shape) // _BLOCK)
        tiles = [x @ self.decoded(at, at + step) for at in range(0, len(self.numbers), step)]
        return torch.cat(tiles, 1)[:, :rows]

    def decoded(self, start: int, stop: int) -> Tensor:
        """These blocks of 64 rows, transposed: [columns, rows]."""
        order = _row_order()
        assert order is not None
        packed = self.numbers[start:stop]
        blocks, columns, _ = packed.shape
        block = len(order)
        packed = packed.view(-1, columns, block // 2)
        table = self.scale_and_zero[:, start * _BLOCK : (start + blocks) * _BLOCK]
        scale, zero = table.unbind(2)
        # Exact, though the table may be rounded: zeros are whole.
        zero = torch.where(scale == 0, 0, (zero / scale).round_()).neg_().add_(8).unsqueeze(1)
        matrix = torch.empty(columns, len(packed), block, dtype=table.dtype)
        matrix[..., : block // 2] = (packed & 15).transpose(0, 1)
        matrix[..., block // 2 :] = (packed >> 4).transpose(0, 1)
        if order != tuple(range(block)):
            matrix = matrix[..., torch.tensor(order).argsort()]
        by_group = matrix.view(len(table), -1, blocks * _BLOCK)
        by_group.sub_(zero).mul_(scale.unsqueeze(1))
        return by_group.view(columns, -1)


@cache
def _row_order() -> tuple[int, ...] | None:
    """Which row of a block each half byte of a column is, the low ones first; None: unknown.

    Torch packs 64, 32 or 16 rows together as the processor's vectors are wide, and does not say
    how; so it is asked to pack a matrix that tells.
    """
    columns = 32
    rows = torch.arange(_BLOCK, dtype=torch.int32).unsqueeze(1).expand(_BLOCK, columns)
    low, high = (
        torch.ops.aten._convert_weight_to_int4pack_for_cpu(digit.contiguous(), 1).view(-1)
        for digit in (rows & 15, rows >> 4)
    )
    found = torch.stack([(low & 15) | (high & 15) << 4, (low >> 4) | (high >> 4) << 4])
    for block in (64, 32, 16):
        shaped = found.view(2, _BLOCK // block, columns, block // 2)
        first = shaped[:, 0, 0].reshape(-1)
        starts = torch.arange(0, _BLOCK, block).view(1, -1, 1, 1)
        expected = first.view(2, 1, 1, -1) + starts
        if torch.equal(shaped, expected.expand_as(shaped).to(shaped.dtype)):
            return tuple(first.tolist())
    return None


@dataclass(frozen=True)
class Reordered:
    """`weight` with the rows that `index` names, in its order."""

    weight: PackedWeight
    index: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.index), self.weight.shape[1]

    @property
    def tensors(self) -> list[Tensor]:
        return self.weight.tensors

    def product(self, x: Tensor) -> Tensor:
        return self.weight.product(x)[:, self.index]


def reordered(weight: Weight, index: Tensor) -> Weight:
    """The rows of `weight` that `index` names; a packed one stays as it is packed."""
    if isinstance(weight, PackedMatrix):
        return weight.reordered(index)
    return weight[index] if isinstance(weight, Tensor) else Reordered(weight, index)


def plain(weight: Weight) -> Tensor:
    """A weight that is a tensor; `DeviceError` where it is packed."""
    if not isinstance(weight, Tensor):
        raise DeviceError("a packed matrix where only plain ones can be multiplied with")
    return weight


def for_kernels(weight: Weight) -> Matrix:
    """A weight that is on a GPU; `DeviceError` for what only the CPU computes with."""
    if not isinstance(weight, Tensor | PackedMatrix):
        raise DeviceError("a matrix packed for the CPU", "use --device cpu")
    return weight


def for_torch(weight: Weight) -> Tensor | PackedWeight:
    """A weight for torch's operators; `DeviceError` for what only our kernels compute with."""
    if isinstance(weight, PackedMatrix):
        raise DeviceError("torch's operators do not multiply with a matrix packed for kernels")
    return weight


def tensors_of(weight: Weight | None) -> list[Tensor]:
    """The memory it has."""
    if weight is None:
        return []
    return [weight] if isinstance(weight, Tensor) else weight.tensors


def _tile_rows(shape: tuple[int, int]) -> int:
    return max(_BLOCK, _TILE_ELEMENTS // shape[1] // _BLOCK * _BLOCK)


def _times(x: Tensor, matrix: Tensor) -> Tensor:
    return torch.mv(matrix, x[0]).unsqueeze(0) if len(x) == 1 else F.linear(x, matrix)
