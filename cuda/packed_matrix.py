"""Matrices of 8 or 4 bits a weight on the GPU, in the order in which the kernels read them."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.check import check_tensor
from swiftchat.cuda.gpu import Gpu

GROUPS = (32, 64, 128)
CHUNK = 2048  # columns whose int4 numbers lie together, before their scales and zeros
_STEP = 128  # columns whose int4 numbers are packed in one order, see `_in_order_of_threads`
_FARTHEST = 1 << 15  # that int4's zero may be from 8
_TILE_BYTES = 1 << 26  # of codes that are brought into order together


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix [rows, k], outputs by inputs, for vectors of `dtype`; made by the functions below.

    `form` is INT8, FP8 (e4m3) or INT4. `codes` uint8 [rows, bytes of a row]: k bytes, or for INT4
    `row_bytes`, with a scale and a zero for each `group` columns. `row_scale` fp32 [rows].
    weight = row_scale·code, or row_scale·scale·(code − 8 + zero).
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
        row = row_bytes(k, self.group) if self.group else k
        check_tensor("codes", self.codes, (rows, row), torch.uint8, gpu)
        check_tensor("row_scale", self.row_scale, (rows,), torch.float32, gpu)


Matrix = Tensor | PackedMatrix


def row_bytes(k: int, group: int) -> int:
    """Bytes of k columns in int4: of every `CHUNK` their numbers, then fp16 scales and zeros in turn,
    filled up to whole 16 bytes."""
    return k // 2 + -(-k // group // 4) * 16


def packing_fits(form: str, k: int, group: int = 0) -> bool:
    """Whether the kernels read rows of k columns in this form."""
    if form == "INT4":
        return k > 0 and k % _STEP == 0 and group in GROUPS
    return k > 0 and k % 16 == 0


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
    puts a weight off by at most 2^−10 of the largest that its group may have. `codes` is overwritten.
    """
    rows, k = codes.shape[0], 2 * codes.shape[1]
    groups = scale.shape[1]
    group = k // groups if k % groups == 0 else 0
    _require("INT4", k, group)
    scale, offset = scale.float(), 8 - zero.float()
    # Half precision has no zeros so far away that numbers hardly count: there all mean the same.
    far = offset.abs() > _FARTHEST
    codes.view(rows, groups, -1)[far] = 0x88
    alike = scale * offset
    scale, offset = torch.where(far, alike.abs(), scale), torch.where(far, alike.sign(), offset)
    largest = scale.abs().amax(1)
    exponent = torch.where(largest > 0, torch.frexp(largest).exponent - 1, 0)
    row_scale = torch.ldexp(torch.ones_like(largest), exponent)
    table = torch.stack([scale / row_scale.unsqueeze(1), offset], 2).half()
    out = codes.new_empty(rows, row_bytes(k, group))
    step = max(1, _TILE_BYTES // codes.shape[1])
    for start in range(0, rows, step):
        some = slice(start, start + step)
        _interleave(_in_order_of_threads(codes[some]), table[some], group, out[some])
    return PackedMatrix("INT4", dtype, (rows, k), out, row_scale, group)


def _interleave(codes: Tensor, table: Tensor, group: int, out: Tensor) -> None:
    """Write a chunk's codes, then its part of the table, then the next chunk's."""
    at = 0
    for column in range(0, 2 * codes.shape[1], CHUNK):
        numbers = codes[:, column // 2 : (column + CHUNK) // 2]
        entries = table[:, column // group : (column + CHUNK) // group]
        entries = F.pad(entries, (0, 0, 0, -entries.shape[1] % 4)).flatten(1).view(torch.uint8)
        for part in (numbers, entries):
            out[:, at : at + part.shape[1]] = part
            at += part.shape[1]


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
        of_groups = f" in groups of {group}" if form == "INT4" else ""
        raise ValueError(f"{form} rows of {k} columns{of_groups} do not fit the kernels")
