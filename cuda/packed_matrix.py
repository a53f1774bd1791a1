"""8-bit and 4-bit matrices on the GPU, packed in the order in which the kernels read them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.packed_layout import (
    TILE_COLUMNS,
    TILE_ROWS,
    packing_fits,
    padded_columns,
    tiles_shape,
)
from swiftchat.cuda.signature import Macro

_MAX_ZERO_POINT = 1 << 15
_PACK_BYTES = 1 << 26  # of quantized values that are packed at a time
_VALUE_WORDS = 16  # a row's quantized values in a tile, in 4-byte words
_CHUNK = torch.complex128  # 16 bytes, which torch moves as one element


@dataclass(frozen=True)
class PackedMatrix:
    """A quantized weight [rows, k] that the kernels multiply with activations of `dtype`.

    `scheme` is INT8, FP8 (e4m3) or INT4. `tiles` uint8 [row blocks, bytes] has a block for every
    eight rows, and in it a tile for every 64 bytes of a row: 64 bytes of quantized values for each
    row, and with a `group_size` then, for each group, an fp16 scale and an fp16 negated zero point
    for each row. Rows and columns are padded to whole tiles with elements that mean 0. `row_scale`
    is fp32 [rows].
    weight = row_scale · value, or row_scale · scale · (value − zero point).

    Raises `ValueError` unless the tensors have the shapes and dtypes of this scheme.
    """

    scheme: str
    dtype: torch.dtype
    shape: tuple[int, int]
    tiles: Tensor
    row_scale: Tensor
    group_size: int = 0

    def __post_init__(self) -> None:
        shape = tiles_shape(self.scheme, *self.shape, self.group_size)
        if self.tiles.shape != shape or self.tiles.dtype != torch.uint8:
            found = f"{self.tiles.dtype} {list(self.tiles.shape)}"
            raise ValueError(f"tiles must be uint8 {list(shape)}, not {found}")
        if self.row_scale.shape != (len(self),) or self.row_scale.dtype != torch.float32:
            found = f"{self.row_scale.dtype} {list(self.row_scale.shape)}"
            raise ValueError(f"row_scale must be fp32 [{len(self)}], not {found}")

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def tensors(self) -> list[Tensor]:
        return [self.tiles, self.row_scale]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def rows(self, start: int, stop: int) -> "PackedMatrix":
        """Return a view of some rows; `start` must be a multiple of 8."""
        blocks = slice(start // TILE_ROWS, -(-stop // TILE_ROWS))
        return self._with(self.tiles[blocks], self.row_scale[start:stop])

    def reordered(self, index: Tensor) -> "PackedMatrix":
        """Return a copy of the rows `index`, in that order."""
        index = index.to(self.tiles.device)
        rows = _from_tiles(self.tiles, len(self), self._tiles_per_block)[index]
        return self._with(_to_tiles(rows), self.row_scale[index])

    def plain_values(self, start: int, stop: int) -> Tensor:
        """Return a copy of the quantized values of some rows, uint8 [rows, k].

        The matrix must have no groups, k must be a multiple of 64 and `start` a multiple of 8.
        """
        part = self.rows(start, stop)
        chunks = 64 // _CHUNK.itemsize
        blocks = part.tiles.view(_CHUNK).view(-1, self._tiles_per_block, TILE_ROWS, chunks)
        rows = blocks.transpose(1, 2).reshape(len(blocks) * TILE_ROWS, -1)
        return rows[: len(part)].view(torch.uint8)

    @property
    def _tiles_per_block(self) -> int:
        return padded_columns(self.scheme, self.shape[1]) // TILE_COLUMNS[self.scheme]

    def _with(self, tiles: Tensor, row_scale: Tensor) -> "PackedMatrix":
        shape = len(row_scale), self.shape[1]
        return replace(self, shape=shape, tiles=tiles, row_scale=row_scale)


Matrix = Tensor | PackedMatrix


def storage(matrix: Matrix) -> tuple[Tensor, Tensor | None]:
    """Return the elements or the tiles of a matrix, and the row scales of a packed one."""
    if isinstance(matrix, PackedMatrix):
        return matrix.tiles, matrix.row_scale
    return matrix, None


def storage_macros(matrix: Matrix) -> dict[str, Macro]:
    """Return the macros of kernels that read the matrix."""
    packing: dict[str, Macro] = {"SCHEME": "PLAIN", "GROUP_SIZE": 0}
    if isinstance(matrix, PackedMatrix):
        packing = {"SCHEME": matrix.scheme, "GROUP_SIZE": matrix.group_size}
    return {"DTYPE": matrix.dtype, **packing}


def pack_int8(values: Tensor, scale: Tensor, dtype: torch.dtype) -> PackedMatrix:
    """Pack weight[r, c] = scale[r] · values[r, c]; `values` int8 [rows, k]."""
    return _pack_rows("INT8", values, scale, dtype)


def pack_fp8(values: Tensor, scale: Tensor, dtype: torch.dtype) -> PackedMatrix:
    """Pack weight[r, c] = scale[r] · e4m3(values[r, c]); `values` uint8 or float8 [rows, k]."""
    return _pack_rows("FP8", values, scale, dtype)


def pack_int4(values: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype) -> PackedMatrix:
    """Pack weight[r, c] = scale[r, g] · (q[r, c] − zero[r, g]), g = c // (columns // groups).

    `values` uint8 [rows, k / 2] has two columns a byte, the lower column in the lower half; it is
    overwritten. `scale` and `zero` are fp32 [rows, groups]. Scales of 11 bits stay exact unless
    they are 2^14 times smaller than the row's largest. Other scales, and zero points that are no
    integers, are rounded to 11 bits: the error of a weight is at most 2^−10 of the largest
    weight that its group can have.
    """
    return _pack_groups("INT4", values, 2 * values.shape[1], scale.float(), -zero.float(), dtype)


def pack_int8_groups(
    values: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype
) -> PackedMatrix:
    """Pack weight[r, c] = scale[r, g] · (values[r, c] − zero[r, g]), g = c // (columns // groups).

    `values` uint8 [rows, k] and zero points are around 128. Otherwise as `pack_int4`.
    """
    values ^= 128  # subtracts 128; the result is int8
    return _pack_groups("INT8", values, values.shape[1], scale.float(), 128 - zero.float(), dtype)


def _pack_groups(
    scheme: str, values: Tensor, k: int, scale: Tensor, minus_zero: Tensor, dtype: torch.dtype
) -> PackedMatrix:
    """Pack weight = scale · (value + minus_zero), both fp32 [rows, groups]; overwrites `values`."""
    rows, groups = scale.shape
    group_size = k // groups if k % groups == 0 else 0
    _check_shape(scheme, k, group_size)
    # fp16 does not hold larger zero points. Beside them the values hardly matter, so all weights
    # of such a group become scale * minus_zero.
    far = minus_zero.abs() > _MAX_ZERO_POINT
    values.view(rows, groups, -1)[far] = 0
    constant = scale * minus_zero
    scale = torch.where(far, constant.abs(), scale)
    minus_zero = torch.where(far, constant.sign(), minus_zero)
    largest = scale.abs().amax(1)
    exponent = torch.where(largest > 0, torch.frexp(largest).exponent - 1, 0)
    row_scale = torch.ldexp(torch.ones_like(largest), exponent)
    table = torch.stack([scale / row_scale.unsqueeze(1), minus_zero], 2).half()
    padding_groups = (padded_columns(scheme, k) - k) // group_size
    table = F.pad(table, (0, 0, 0, padding_groups))
    table = table.view(rows, -1, TILE_COLUMNS[scheme] // group_size * 2)
    to_thread_order = _nibbles_to_thread_order if scheme == "INT4" else _bytes_to_thread_order

    def tile_rows(part: slice) -> Tensor:
        padded = F.pad(values[part], (0, values.shape[1] * padding_groups // groups))
        return torch.cat([to_thread_order(padded), table[part].view(torch.uint8)], 2)

    return _pack(scheme, dtype, (rows, k), tile_rows, row_scale, group_size)


def _pack_rows(scheme: str, values: Tensor, scale: Tensor, dtype: torch.dtype) -> PackedMatrix:
    rows, k = values.shape
    _check_shape(scheme, k, 0)
    values, padding = values.view(torch.uint8), padded_columns(scheme, k) - k

    def tile_rows(part: slice) -> Tensor:
        return F.pad(values[part], (0, padding)).view(-1, (k + padding) // 64, 64)

    return _pack(scheme, dtype, (rows, k), tile_rows, scale.float(), 0)


def _pack(
    scheme: str,
    dtype: torch.dtype,
    shape: tuple[int, int],
    tile_rows: Callable[[slice], Tensor],
    row_scale: Tensor,
    group_size: int,
) -> PackedMatrix:
    """Pack a matrix; `tile_rows(rows)` returns the bytes of some rows, [rows, tiles, bytes]."""
    rows, k = shape
    tiles = torch.empty(
        tiles_shape(scheme, rows, k, group_size), dtype=torch.uint8, device=row_scale.device
    )
    step = max(1, _PACK_BYTES // k // TILE_ROWS) * TILE_ROWS
    for start in range(0, rows, step):
        blocks = _to_tiles(tile_rows(slice(start, start + step)))
        tiles[start // TILE_ROWS :][: len(blocks)] = blocks
    return PackedMatrix(scheme, dtype, shape, tiles, row_scale, group_size)


def _to_tiles(rows: Tensor) -> Tensor:
    """Return bytes [rows, tiles, 64 + 4 · groups] in the order of `PackedMatrix.tiles`."""
    rows = F.pad(rows, (0, 0, 0, 0, 0, -len(rows) % TILE_ROWS)).view(torch.int32)
    blocks = rows.view(-1, TILE_ROWS, *rows.shape[1:]).transpose(1, 2)  # block, tile, row, word
    values, table = blocks[..., :_VALUE_WORDS], blocks[..., _VALUE_WORDS:].transpose(2, 3)
    return torch.cat([values.flatten(2), table.flatten(2)], 2).flatten(1).view(torch.uint8)


def _from_tiles(tiles: Tensor, rows: int, tiles_per_block: int) -> Tensor:
    """Invert `_to_tiles`; return the first `rows` rows."""
    blocks, end = len(tiles), TILE_ROWS * _VALUE_WORDS
    words = tiles.view(torch.int32).view(blocks, tiles_per_block, -1)
    groups = (words.shape[2] - end) // TILE_ROWS
    values = words[..., :end].reshape(blocks, tiles_per_block, TILE_ROWS, _VALUE_WORDS)
    table = words[..., end:].reshape(blocks, tiles_per_block, groups, TILE_ROWS).transpose(2, 3)
    by_row = torch.cat([values, table], 3).transpose(1, 2)  # block, row, tile, word
    return by_row.reshape(-1, tiles_per_block, _VALUE_WORDS + groups)[:rows].view(torch.uint8)


def _bytes_to_thread_order(values: Tensor) -> Tensor:
    """Order 64 columns so that each of the four threads of a row reads 16 contiguous bytes.

    Thread t gets columns 32p + 8t … 32p + 8t + 7 as its p-th eight bytes.
    """
    eights = values.view(len(values), -1, 2, 4, 8).transpose(2, 3)
    return eights.reshape(len(values), -1, 64)


def _nibbles_to_thread_order(values: Tensor) -> Tensor:
    """Order 128 columns so that each of the four threads of a row reads four 4-byte words.

    `values` has two columns a byte, the lower one in the lower half. Thread t gets columns
    32p + 8t … 32p + 8t + 7 as its word p: the first four in the lower halves of the bytes, the
    others in the upper halves.
    """
    pairs = values.view(len(values), -1, 4, 4, 2, 2)  # row, tile, p, t, lower or upper four, pair
    first, second = pairs.unbind(4)
    low = (first & 15) | (second << 4)
    high = (first >> 4) | (second & 0xF0)
    words = torch.stack([low, high], 5)  # row, tile, p, t, pair, which of it
    return words.transpose(2, 3).reshape(len(values), -1, 64)


def _check_shape(scheme: str, k: int, group_size: int) -> None:
    if not packing_fits(scheme, k, group_size):
        groups = f" in groups of {group_size}" if group_size else ""
        raise ValueError(f"the kernels do not read {scheme} rows of {k} columns{groups}")
