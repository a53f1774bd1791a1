"""Matrices that the engine multiplies with packed, one class for each form, on the CPU; on GPUs
they are `cuda.packed_matrix`'s.

`docs/quantization.md` has a picture of each. Torch's packed operators are the fastest there are
for a few rows of bfloat16; for more, and for other dtypes, a tile of the matrix at a time is
decoded and multiplied with in the usual way. Neither ever has the whole matrix decoded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.packed_matrix import Matrix, PackedMatrix
from swiftchat.errors import DeviceError
from swiftchat.weights.quantization.scheme import Int4, Int8, Int8Groups, QuantizedMatrix

# Up to so many rows torch's packed operator is the faster way; measured with SmolLM2's shapes.
_FEW_ROWS_INT4 = 64
_FEW_ROWS_INT8 = 16
_TILE_ELEMENTS = 1 << 19
_BLOCK = 64  # rows of an int4 matrix that torch packs together at most
_KERNEL_GROUPS = (32, 64, 128, 256)

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class QuantizedWeight(Protocol):
    """A matrix [rows, columns], outputs by inputs, in fewer bits."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def tensors(self) -> list[Tensor]: ...
    def product(self, x: Tensor) -> Tensor:
        """x [n, columns] times the matrix transposed: [n, rows], in x's dtype."""


_PackedWeight = TypeVar("_PackedWeight", bound=QuantizedWeight)
# What a decoder has: the kernels' packed matrices on a GPU, the classes here on the CPU.
Weight = Tensor | QuantizedWeight | PackedMatrix


class QuantizedTable(QuantizedWeight, Protocol):
    """A packed matrix whose rows are also looked up: embeddings."""

    @property
    def dtype(self) -> torch.dtype: ...
    def rows(self, ids: Tensor) -> Tensor:
        """The rows `ids` [n]: [n, columns], in `dtype`."""


Table = Tensor | QuantizedTable | PackedMatrix


def packed_weight(parts: Sequence[QuantizedMatrix], dtype: torch.dtype) -> QuantizedWeight | None:
    """The parts under each other as one matrix to multiply `dtype` with.

    None where they are not of one form, or of one that no class here computes with.
    """
    first = parts[0]
    if len({type(part) for part in parts}) > 1:
        return None
    scale = np.concatenate([part.scale for part in parts])
    one = _together([part.values for part in parts])
    if isinstance(first, Int4 | Int8Groups):
        if len({part.scale.shape[1] for part in parts}) > 1:
            return None
        zero = _together([part.zero_point for part in parts if isinstance(part, Int4 | Int8Groups)])
        if isinstance(first, Int4):
            return Int4Weight.packed(Int4(one, scale, zero), dtype)
        return Int8GroupsWeight.packed(Int8Groups(one, scale, zero), dtype)
    # A view of the file where it is one part that needs no change.
    numbers, factors = (torch.from_numpy(np.ascontiguousarray(array)) for array in (one, scale))
    if isinstance(first, Int8):
        return Int8Weight(numbers, factors)
    return Int8Weight(numbers.view(torch.int8), factors, decoded_e4m3)


def _together(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@dataclass(frozen=True)
class Int8Weight:
    """A byte for each number, as it lies in the file, and a factor for each row.

    `numbers` int8 [rows, columns], `scale` fp32 [rows]. `decode` gives what bytes mean that are not
    int8 themselves, exactly.
    """

    numbers: Tensor
    scale: Tensor
    decode: Callable[[Tensor], Tensor] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.numbers.shape[0], self.numbers.shape[1]

    @property
    def tensors(self) -> list[Tensor]:
        return [self.numbers, self.scale]

    def product(self, x: Tensor) -> Tensor:
        if self.decode is None and x.dtype == torch.bfloat16 and len(x) <= _FEW_ROWS_INT8:
            return torch._weight_int8pack_mm(x, self.numbers, self.scale.to(x.dtype))
        tiles = torch.split(self.numbers, _tile_rows(self.shape))
        meant = (tile if self.decode is None else self.decode(tile) for tile in tiles)
        product = torch.cat([_times(x, tile.to(x.dtype)) for tile in meant], 1)
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

    `numbers` uint8 [rows, columns/2], as the operator takes them: in truth [rows/64, columns, 32],
    rows filled up to whole blocks. `scale_and_zero` [groups, rows, 2], so that weight =
    (q − 8)·scale + zero, in the dtype computed in. With `whole_zeros` that zero is a multiple of
    the scale, but for its rounding.
    """

    shape: tuple[int, int]
    numbers: Tensor
    scale_and_zero: Tensor
    group_size: int
    whole_zeros: bool

    @classmethod
    def packed(cls, kept: Int4, dtype: torch.dtype) -> "Int4Weight | None":
        rows, half = kept.values.shape
        columns, groups = 2 * half, kept.scale.shape[1]
        order = _row_order()
        if columns // groups not in _KERNEL_GROUPS or order is None:
            return None

        def codes(start: int, stop: int) -> Bytes:
            return np.stack([kept.values[start:stop] & 15, kept.values[start:stop] >> 4], 2)

        return cls._made((rows, columns), codes, kept.scale, kept.zero_point, dtype, order)

    @classmethod
    def _made(
        cls,
        shape: tuple[int, int],
        codes: Callable[[int, int], Bytes],
        scale: Floats,
        zero: Floats,
        dtype: torch.dtype,
        order: Sequence[int],
    ) -> "Int4Weight":
        """Out of what `codes(start, stop)` gives of these rows, a byte for each number.

        In numpy: threads are no help here, and where others use the cores too they wait for them.
        """
        rows, columns = shape
        block, spare = len(order), -rows % _BLOCK
        packed = np.empty(((rows + spare) // _BLOCK, columns, _BLOCK // 2), np.uint8)
        step = max(1, _TILE_ELEMENTS // (columns * _BLOCK))
        for start in range(0, len(packed), step):
            wide = codes(start * _BLOCK, (start + step) * _BLOCK).reshape(-1, columns)
            whole_blocks = np.pad(wide, ((0, -len(wide) % _BLOCK), (0, 0)))
            in_order = whole_blocks.reshape(-1, block, columns)[:, list(order)]
            low, high = np.split(in_order, 2, 1)
            made = (low | high << np.uint8(4)).transpose(0, 2, 1)
            packed[start : start + step] = made.reshape(-1, columns, _BLOCK // 2)
        table = np.zeros((scale.shape[1], rows + spare, 2), np.float32)
        table[:, :rows, 0], table[:, :rows, 1] = scale.T, (scale * (8 - zero)).T
        whole = bool((zero == np.rint(zero)).all())
        return cls(
            shape,
            torch.from_numpy(packed.reshape(-1, columns // 2)),
            torch.from_numpy(table).to(dtype),
            columns // len(table),
            whole,
        )

    @property
    def tensors(self) -> list[Tensor]:
        return [self.numbers, self.scale_and_zero]

    @property
    def dtype(self) -> torch.dtype:
        return self.scale_and_zero.dtype

    def product(self, x: Tensor) -> Tensor:
        rows = self.shape[0]
        if x.dtype == torch.bfloat16 and x.shape[0] <= _FEW_ROWS_INT4:
            product = torch._weight_int4pack_mm_for_cpu(
                x, self.numbers, self.group_size, self.scale_and_zero
            )
            return product if product.shape[1] == rows else product[:, :rows]
        step = _tile_rows(self.shape)
        tiles = [x @ self.decoded(at, at + step) for at in range(0, len(self.numbers), step)]
        return torch.cat(tiles, 1)[:, :rows]

    def decoded(self, start: int, stop: int) -> Tensor:
        """These rows, from a multiple of 64 to another or the end, transposed: [columns, rows]."""
        order = _row_order()
        assert order is not None
        columns, block = self.shape[1], len(order)
        packed = self.numbers[start:stop].view(-1, columns, block // 2)
        table = self.scale_and_zero[:, start:stop]
        matrix = torch.empty(columns, len(packed), block, dtype=table.dtype)
        low, high = ((digits.view(torch.int8) - 8) for digits in (packed & 15, packed >> 4))
        matrix[..., : block // 2] = low.transpose(0, 1)
        matrix[..., block // 2 :] = high.transpose(0, 1)
        if order != tuple(range(block)):
            matrix = matrix[..., _places()]
        by_group = matrix.view(len(table), self.group_size, -1)
        # Apart, for numbers that lie by turns take four times as long to multiply with.
        scale, zero = table.unsqueeze(1).movedim(-1, 0).contiguous()
        return self._meant(by_group, scale, zero).reshape(columns, -1)

    def rows(self, ids: Tensor) -> Tensor:
        places = _places()
        columns, block = self.shape[1], len(places)
        place = places[ids % block]
        packed = self.numbers.view(-1, columns, block // 2)
        bytes_ = packed[ids // block, :, place % (block // 2)]
        shifts = (place // (block // 2)).mul_(4).to(torch.uint8).unsqueeze(1)
        codes = (bytes_ >> shifts).bitwise_and_(15).view(torch.int8).sub_(8)
        table = self.scale_and_zero[:, ids].transpose(0, 1).unsqueeze(2)
        by_group = codes.to(table.dtype).view(len(ids), table.shape[1], -1)
        return self._meant(by_group, *table.unbind(-1)).reshape(len(ids), columns)

    def _meant(self, codes: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        """What codes less 8 mean, by factors and zeros that broadcast; destroys the codes."""
        if not self.whole_zeros:
            return torch.addcmul(zero, codes, scale, out=codes)
        # Exact, though the table may be rounded.
        whole = torch.where(scale == 0, 0, (zero / scale).round_())
        return codes.add_(whole).mul_(scale)


@dataclass(frozen=True)
class Int8GroupsWeight:
    """Numbers of 8 bits with a factor for each group of columns, as two of 4 bits.

    A number is 16·(its upper half − 8) + its lower half, so the matrix is one of `halves`
    [rows, 2·columns], the upper ones before the lower, multiplied with every row twice: torch
    has no operator of its own for 8 bits in groups.
    """

    halves: Int4Weight

    @classmethod
    def packed(cls, kept: Int8Groups, dtype: torch.dtype) -> "Int8GroupsWeight | None":
        rows, columns = kept.values.shape
        order = _row_order()
        if columns // kept.scale.shape[1] not in _KERNEL_GROUPS or order is None:
            return None

        def codes(start: int, stop: int) -> Bytes:
            return np.concatenate([kept.values[start:stop] >> 4, kept.values[start:stop] & 15], 1)

        scale = np.concatenate([16 * kept.scale, kept.scale], 1)
        zero = np.concatenate([np.full_like(kept.zero_point, 8), kept.zero_point - 128], 1)
        return cls(Int4Weight._made((rows, 2 * columns), codes, scale, zero, dtype, order))

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.halves.shape
        return rows, columns // 2

    @property
    def tensors(self) -> list[Tensor]:
        return self.halves.tensors

    @property
    def dtype(self) -> torch.dtype:
        return self.halves.dtype

    def product(self, x: Tensor) -> Tensor:
        if x.dtype == torch.bfloat16 and len(x) <= _FEW_ROWS_INT4:
            return self.halves.product(torch.cat([x, x], 1))
        step = _tile_rows(self.halves.shape)
        tiles = []
        for at in range(0, len(self.halves.numbers), step):
            upper, lower = self.halves.decoded(at, at + step).chunk(2)
            tiles.append(x @ upper.add_(lower))
        return torch.cat(tiles, 1)[:, : self.shape[0]]

    def rows(self, ids: Tensor) -> Tensor:
        upper, lower = self.halves.rows(ids).chunk(2, 1)
        return upper + lower


@cache
def _row_order() -> tuple[int, ...] | None:
    """Which row of a block each half byte of a column is, the low ones first; None: unknown.

    Torch packs 64, 32 or 16 rows together as the processor's vectors are wide, and does not say
    how; so it is asked to pack a matrix that tells. None as well where its operator is a plain
    loop, as on ARM: many times as slow as bfloat16's product.
    """
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return None
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


@cache
def _places() -> Tensor:
    """Which half byte of a column each row of a block is, the low ones first."""
    order = _row_order()
    assert order is not None
    return torch.tensor(order).argsort()


@dataclass(frozen=True)
class Reordered:
    """`weight` with the rows that `index` names, in its order."""

    weight: QuantizedWeight
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


def has_rows(weight: Weight | None) -> TypeGuard[Table]:
    """Whether rows of it can be looked up."""
    return isinstance(weight, Tensor | Int4Weight | Int8GroupsWeight | PackedMatrix)


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


def for_torch(weight: _PackedWeight | PackedMatrix) -> _PackedWeight:
    """One for torch's operators; `DeviceError` for what only our kernels compute with."""
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
