"""Matrices of 8 or 4 bits a weight on the GPU, in the order in which the kernels read them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.packed_layout import BLOCK_ROWS, STEPS, codes_shape, filled, packing_fits

_FARTHEST = 1 << 15  # that an offset may be
_TILE_BYTES = 1 << 26  # of codes that are brought into order together
_WORDS = 16  # of a row's numbers in a record
_PIECE = torch.complex128  # 16 bytes, which torch moves at once


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix [rows, k], outputs by inputs, for vectors of `dtype`; made by the functions below.

    `form` is INT8, FP8 (e4m3) or INT4. `codes` uint8 [blocks, …] has a block for every eight rows,
    of records: of each row 64 bytes of numbers, and then, if there are groups of `group` columns,
    for each of them a scale and an offset of each row, in fp16. Columns and rows are filled up to
    whole records by what means 0. `row_scale` fp32 [rows].
    weight = row_scale·code, or row_scale·scale·(code + offset).
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
        """A view of these rows; `start` must be a multiple of 8."""
        blocks = slice(start // BLOCK_ROWS, -(-stop // BLOCK_ROWS))
        return self._of(self.codes[blocks], self.row_scale[start:stop])

    def reordered(self, index: Tensor) -> "PackedMatrix":
        """A copy of the rows that `index` names, in its order."""
        index = index.to(self.codes.device)
        rows = _out_of_blocks(self.codes, len(self), self._steps)[index]
        return self._of(_in_blocks(rows), self.row_scale[index])

    def plain_codes(self, start: int, stop: int) -> Tensor:
        """A copy of the bytes of these rows [rows, k], of a matrix without groups.

        `start` is as for `rows`; k must be a multiple of 64.
        """
        some = self.rows(start, stop)
        blocks = some.codes.view(_PIECE).view(-1, self._steps, BLOCK_ROWS, 64 // _PIECE.itemsize)
        rows = blocks.transpose(1, 2).reshape(len(blocks) * BLOCK_ROWS, -1)
        return rows[: len(some)].view(torch.uint8)

    @property
    def _steps(self) -> int:
        return filled(self.form, self.shape[1]) // STEPS[self.form]

    def _of(self, codes: Tensor, row_scale: Tensor) -> "PackedMatrix":
        shape = len(row_scale), self.shape[1]
        return replace(self, shape=shape, codes=codes, row_scale=row_scale)

    def check(self, gpu: Gpu) -> None:
        """Raise `ValueError` unless the tensors are what the kernels take them for."""
        shape = codes_shape(self.form, *self.shape, self.group)
        check_tensor("codes", self.codes, shape, torch.uint8, gpu)
        check_tensor("row_scale", self.row_scale, (len(self),), torch.float32, gpu)


Matrix = Tensor | PackedMatrix


def packed_int8(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> PackedMatrix:
    """weight[r, c] = scale[r]·codes[r, c]; `codes` int8 [rows, k]."""
    return _bytes("INT8", codes, scale, dtype)


def packed_fp8(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> PackedMatrix:
    """weight[r, c] = scale[r]·e4m3(codes[r, c]); `codes` are bytes [rows, k] or float8."""
    return _bytes("FP8", codes, scale, dtype)


def packed_int4(codes: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype) -> PackedMatrix:
    """weight[r, c] = scale[r, g]·(q[r, c] − zero[r, g]), g = c // (columns // groups).

    `codes` uint8 [rows, k / 2], the lower column in the low half of a byte; `scale` and `zero`
    fp32 [rows, groups]. Factors of 11 bits stay exact unless they are 2^14 times smaller than
    the row's largest; other factors, and zeros that are not whole, are rounded to 11 bits, which
    puts a weight off by at most 2^−10 of the largest that its group may have. `codes` is
    overwritten.
    """
    return _in_groups("INT4", codes, 2 * codes.shape[1], scale.float(), -zero.float(), dtype)


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
    rows, groups = scale.shape
    group = k // groups if k % groups == 0 else 0
    _require(form, k, group)
    # Half precision has no offsets so far away that numbers hardly count: there all mean the same.
    far = offset.abs() > _FARTHEST
    codes.view(rows, groups, -1)[far] = 0
    alike = scale * offset
    scale, offset = torch.where(far, alike.abs(), scale), torch.where(far, alike.sign(), offset)
    largest = scale.abs().amax(1)
    exponent = torch.where(largest > 0, torch.frexp(largest).exponent - 1, 0)
    row_scale = torch.ldexp(torch.ones_like(largest), exponent)
    table = torch.stack([scale / row_scale.unsqueeze(1), offset], 2).half()
    spare = (filled(form, k) - k) // group
    table = F.pad(table, (0, 0, 0, spare)).view(rows, -1, STEPS[form] // group * 2)
    in_order = _nibbles_in_order if form == "INT4" else _bytes_in_order

    def record(some: slice) -> Tensor:
        numbers = F.pad(codes[some], (0, codes.shape[1] * spare // groups))
        return torch.cat([in_order(numbers), table[some].view(torch.uint8)], 2)

    return _packed(form, dtype, (rows, k), record, row_scale, group)


def _bytes(form: str, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> PackedMatrix:
    rows, k = codes.shape
    _require(form, k, 0)
    codes, spare = codes.view(torch.uint8), filled(form, k) - k

    def record(some: slice) -> Tensor:
        return F.pad(codes[some], (0, spare)).view(-1, (k + spare) // 64, 64)

    return _packed(form, dtype, (rows, k), record, scale.float(), 0)


def _packed(
    form: str,
    dtype: torch.dtype,
    shape: tuple[int, int],
    record: Callable[[slice], Tensor],
    row_scale: Tensor,
    group: int,
) -> PackedMatrix:
    """`record` makes of some rows their bytes in the order of records, [rows, steps, bytes]."""
    rows, k = shape
    out = torch.empty(codes_shape(form, rows, k, group), dtype=torch.uint8, device=row_scale.device)
    step = max(1, _TILE_BYTES // k // BLOCK_ROWS) * BLOCK_ROWS
    for start in range(0, rows, step):
        blocks = _in_blocks(record(slice(start, start + step)))
        out[start // BLOCK_ROWS :][: len(blocks)] = blocks
    return PackedMatrix(form, dtype, shape, out, row_scale, group)


def _in_blocks(rows: Tensor) -> Tensor:
    """Bytes [rows, steps, 64 and those of scales and offsets] as `PackedMatrix.codes`."""
    rows = F.pad(rows, (0, 0, 0, 0, 0, -len(rows) % BLOCK_ROWS)).view(torch.int32)
    blocks = rows.view(-1, BLOCK_ROWS, *rows.shape[1:]).transpose(1, 2)  # block, step, row, word
    numbers, table = blocks[..., :_WORDS], blocks[..., _WORDS:].transpose(2, 3)
    return torch.cat([numbers.flatten(2), table.flatten(2)], 2).flatten(1).view(torch.uint8)


def _out_of_blocks(codes: Tensor, rows: int, steps: int) -> Tensor:
    """The first rows as they went into `_in_blocks`."""
    blocks, end = len(codes), BLOCK_ROWS * _WORDS
    records = codes.view(torch.int32).view(blocks, steps, -1)
    groups = (records.shape[2] - end) // BLOCK_ROWS
    numbers = records[..., :end].reshape(blocks, steps, BLOCK_ROWS, _WORDS)
    table = records[..., end:].reshape(blocks, steps, groups, BLOCK_ROWS).transpose(2, 3)
    together = torch.cat([numbers, table], 3).transpose(1, 2)  # block, row, step, word
    return together.reshape(-1, steps, _WORDS + groups)[:rows].view(torch.uint8)


def _bytes_in_order(codes: Tensor) -> Tensor:
    """Of 64 columns thread t of a row's four takes 32p + 8t … 32p + 8t + 7 as its p-th eight."""
    eights = codes.view(len(codes), -1, 2, 4, 8).transpose(2, 3)
    return eights.reshape(len(codes), -1, 64)


def _nibbles_in_order(codes: Tensor) -> Tensor:
    """Bytes of two columns each, the lower one in the low half, as the threads of a warp want them.

    Of 128 columns thread t of a row's four takes 32p + 8t … 32p + 8t + 7 in its word p, the first
    four of them in the low halves of its bytes and the others in the high halves.
    """
    pairs = codes.view(len(codes), -1, 4, 4, 2, 2)  # row, step, p, t, which four, which two of them
    first, second = pairs.unbind(4)
    low = (first & 15) | (second << 4)
    high = (first >> 4) | (second & 0xF0)
    words = torch.stack([low, high], 5)  # row, step, p, t, which two, which of them
    return words.transpose(2, 3).reshape(len(codes), -1, 64)


def _require(form: str, k: int, group: int) -> None:
    if not packing_fits(form, k, group):
        of_groups = f" in groups of {group}" if group else ""
        raise ValueError(f"{form} rows of {k} columns{of_groups} do not fit the kernels")
