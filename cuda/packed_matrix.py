"""Matrices of 8 or 4 bits a weight on the GPU, in the order in which the kernels read them."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.check import check_tensor
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.packing import CHUNKS, filled, packing_fits, row_bytes

_FARTHEST = 1 << 15  # that int4's zero may be from 8
_NOTHING = {"INT4": 0x88, "INT8": 0}  # bytes of numbers that mean 0, where there is no zero
_TILE_BYTES = 1 << 26  # of codes that are brought into order together


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix [rows, k], outputs by inputs, for vectors of `dtype`; made by the functions below.

    `form` is INT8, FP8 (e4m3) or INT4. `codes` uint8 [rows, `row_bytes`], with a scale and a zero
    for each `group` columns, if there are groups. `row_scale` fp32 [rows].
    weight = row_scale·code, or row_scale·scale·(code + zero), where 8 is taken from INT4's codes.
    """

    form: str
    dtype: torch.dtype
    shape: tuple[int, int]
    codes: Tensor
    row_scale: Tensor
    group: int = 0

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def tensors(self) -> list[Tensor]:
        return [self.codes, self.row_scale]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def rows(self, start: int, stop: int) -> "PackedMatrix":
        """A view of these rows; `start` must be a multiple of 4."""
        return self._of(self.codes[start:stop], self.row_scale[start:stop])

    def reordered(self, index: Tensor) -> "PackedMatrix":
        """A copy of the rows that `index` names, in its order."""
        index = index.to(self.codes.device)
        return self._of(self.codes[index], self.row_scale[index])

    def _of(self, codes: Tensor, row_scale: Tensor) -> "PackedMatrix":
        return replace(self, shape=(len(codes), self.shape[1]), codes=codes, row_scale=row_scale)

    def check(self, gpu: Gpu) -> None:
        """Raise `ValueError` unless the tensors are what the kernels take them for."""
        rows, k = self.shape
        width = row_bytes(self.form, k, self.group)
        check_tensor("codes", self.codes, (rows, width), torch.uint8, gpu)
        check_tensor("row_scale", self.row_scale, (rows,), torch.float32, gpu)


Matrix = Tensor | PackedMatrix


def packed_int8(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> PackedMatrix:
    """weight[r, c] = scale[r]·codes[r, c]; `codes` int8 [rows, k], which is kept as it lies."""
    return _bytes("INT8", codes, scale, dtype)


def packed_fp8(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> PackedMatrix:
    """weight[r, c] = scale[r]·e4m3(codes[r, c]); `codes` are bytes [rows, k] or float8, kept."""
    return _bytes("FP8", codes, scale, dtype)


def packed_int4(codes: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype) -> PackedMatrix:
    """weight[r, c] = scale[r, g]·(q[r, c] − zero[r, g]), g = c // (columns // groups).

    `codes` uint8 [rows, k / 2], the lower column in the low half of a byte; `scale` and `zero`
    fp32 [rows, groups]. Factors of 11 bits stay exact unless they are 2^14 times smaller than
    the row's largest; other factors, and zeros that are not whole, are rounded to 11 bits, which
    puts a weight off by at most 2^−10 of the largest that its group may have. `codes` is
    overwritten.
    """
    k, offset = 2 * codes.shape[1], 8 - zero.float()
    return _in_groups("INT4", codes, k, scale.float(), offset, dtype)


def packed_int8_groups(
    codes: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype
) -> PackedMatrix:
    """weight[r, c] = scale[r, g]·(codes[r, c] − zero[r, g]), g = c // (columns // groups).

    `codes` uint8 [rows, k] lie around 128, as zeros do; all else is as with `packed_int4`.
    """
    codes ^= 128  # 128 less, as int8
    return _in_groups("INT8", codes, codes.shape[1], scale.float(), 128 - zero.float(), dtype)


def _in_groups(
    form: str, codes: Tensor, k: int, scale: Tensor, offset: Tensor, dtype: torch.dtype
) -> PackedMatrix:
    """weight = scale·(number + offset), scale and offset fp32 [rows, groups].

    `codes` are overwritten.
    """
    (rows, groups), nothing = scale.shape, _NOTHING[form]
    group = k // groups if k % groups == 0 else 0
    _require(form, k, group)
    # Half precision has no zeros so far away that numbers hardly count: there all mean the same.
    far = offset.abs() > _FARTHEST
    codes.view(rows, groups, -1)[far] = nothing
    alike = scale * offset
    scale, offset = torch.where(far, alike.abs(), scale), torch.where(far, alike.sign(), offset)
    largest = scale.abs().amax(1)
    exponent = torch.where(largest > 0, torch.frexp(largest).exponent - 1, 0)
    row_scale = torch.ldexp(torch.ones_like(largest), exponent)
    table = torch.stack([scale / row_scale.unsqueeze(1), offset], 2).half()
    out = codes.new_empty(rows, row_bytes(form, k, group))
    step = max(1, _TILE_BYTES // codes.shape[1])
    spare = codes.shape[1] * filled(form, k, group) // k - codes.shape[1]
    in_order = _in_order_of_threads if form == "INT4" else _bytes_in_order_of_threads
    for start in range(0, rows, step):
        some = slice(start, start + step)
        tile = F.pad(codes[some], (0, spare), value=nothing)
        _interleave(form, in_order(tile), table[some], group, out[some])
    return PackedMatrix(form, dtype, (rows, k), out, row_scale, group)


def _interleave(form: str, codes: Tensor, table: Tensor, group: int, out: Tensor) -> None:
    """Write a chunk's codes, then its part of the table, then the next chunk's."""
    at, chunk, in_byte = 0, CHUNKS[form], 2 if form == "INT4" else 1
    for column in range(0, in_byte * codes.shape[1], chunk):
        numbers = codes[:, column // in_byte : (column + chunk) // in_byte]
        entries = table[:, column // group : (column + chunk) // group]
        entries = F.pad(entries, (0, 0, 0, -entries.shape[1] % 4)).flatten(1).view(torch.uint8)
        for part in (numbers, entries):
            out[:, at : at + part.shape[1]] = part
            at += part.shape[1]


def _bytes_in_order_of_threads(codes: Tensor) -> Tensor:
    """Of 64 columns thread t of a row's four takes 32p + 8t … 32p + 8t + 7 as its p-th eight."""
    return codes.view(len(codes), -1, 2, 4, 8).transpose(2, 3).reshape(codes.shape)


def _in_order_of_threads(codes: Tensor) -> Tensor:
    """Bytes of two columns each, the lower one in the low half, as the threads of a warp want them.

    Of 128 columns thread t of a row's four takes 32p + 8t … 32p + 8t + 7 in its word p, column 2i
    in the bits 4i and column 2i + 1 in the bits 16 + 4i.
    """
    pairs = codes.view(len(codes), -1, 4, 4, 2, 2)  # row, step, p, t, half of i, i modulo 2
    first, second = pairs.unbind(5)
    low = (first & 15) | (second << 4)
    high = (first >> 4) | (second & 0xF0)
    words = torch.stack([low, high], 4)  # row, step, p, t, column modulo 2, half of i
    return words.transpose(2, 3).reshape(codes.shape)


def _bytes(form: str, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> PackedMatrix:
    _require(form, codes.shape[1], 0)
    shape = (codes.shape[0], codes.shape[1])
    return PackedMatrix(form, dtype, shape, codes.view(torch.uint8), scale.float())


def _require(form: str, k: int, group: int) -> None:
    if not packing_fits(form, k, group):
        of_groups = f" in groups of {group}" if group else ""
        raise ValueError(f"{form} rows of {k} columns{of_groups} do not fit the kernels")
