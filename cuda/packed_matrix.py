"""8-bit and 4-bit matrices on the GPU, packed in the order in which the kernels read them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.packed_layout import (
    PACKED_SCHEMES,
    TILE_ROWS,
    has_row_scales,
    packed_group_size,
    padded_columns,
    table_shape,
    tiles_shape,
)
from swiftchat.cuda.signature import Macro

# 2^1: the factor of a larger one exceeds the range of fp16 and bf16.
LARGEST_MXFP4_SCALE = 128
_MAX_ZERO_POINT = 1 << 15
_PACK_BYTES = 1 << 26  # of quantized values that are packed at a time
_ROW_BYTES = 64  # of a row's quantized values in a tile
# By which the row scales of NVFP4 make up for the entries of its groups.
_NVFP4_ENTRY_FACTOR = 2.0**7
_CHUNK = torch.complex128  # 16 bytes, which torch moves as one element


def _entries_of_e4m3() -> Tensor:
    """Return the entries of the e4m3 numbers without sign by their bits, uint8 [128].

    An entry has five bits of exponent and three of fraction; it means (1 + fraction) · 2^(e − 22).
    """
    numbers = torch.arange(128, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    fraction, exponent = torch.frexp(numbers)  # from 1/2 up to 1
    entries = (exponent - 1 + 22) * 8 + (16 * fraction - 8)
    return torch.where(numbers > 0, entries, 0).byte()


_ENTRY_OF_E4M3 = _entries_of_e4m3()


@dataclass(frozen=True)
class PackedMatrix:
    """A quantized weight [rows, k] that the kernels multiply with activations of `dtype`.

    `scheme` is one of `PACKED_SCHEMES`: INT8, FP8 (e4m3), INT4, MXFP4 or NVFP4 (e2m1). `tiles`
    uint8 [row blocks, bytes] has a block for every eight rows, and in it a tile for every 64 bytes
    of a row: 64 bytes of quantized values for each row, and with a `group_size` then, for each
    group, an fp16 scale and, but for FP8, an fp16 negated zero point for each row. MXFP4 and NVFP4
    have, for each row, a byte for each group, which means its scale: a power of two for `dtype`,
    or three bits below five of an exponent. Rows and columns are padded to whole tiles with
    elements that mean 0. `row_scale` is fp32 [rows]; None with MXFP4.
    weight = row_scale · value, or row_scale · scale · (value − zero point).

    Raises `ValueError` unless the tensors have the shapes and dtypes of this scheme.
    """

    scheme: str
    dtype: torch.dtype
    shape: tuple[int, int]
    tiles: Tensor
    row_scale: Tensor | None
    group_size: int = 0

    def __post_init__(self) -> None:
        shape = tiles_shape(self.scheme, *self.shape, self.group_size)
        if self.tiles.shape != shape or self.tiles.dtype != torch.uint8:
            found = f"{self.tiles.dtype} {list(self.tiles.shape)}"
            raise ValueError(f"tiles must be uint8 {list(shape)}, not {found}")
        scale = self.row_scale
        if (scale is not None) != has_row_scales(self.scheme):
            raise ValueError(f"{self.scheme} with row_scale {scale}")
        if scale is not None and (scale.shape != (len(self),) or scale.dtype != torch.float32):
            found = f"{scale.dtype} {list(scale.shape)}"
            raise ValueError(f"row_scale must be fp32 [{len(self)}], not {found}")

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def tensors(self) -> list[Tensor]:
        return [self.tiles] if self.row_scale is None else [self.tiles, self.row_scale]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def rows(self, start: int, stop: int) -> "PackedMatrix":
        """Return a view of some rows; `start` must be a multiple of 8."""
        blocks = slice(start // TILE_ROWS, -(-stop // TILE_ROWS))
        scale = None if self.row_scale is None else self.row_scale[start:stop]
        return self._with(self.tiles[blocks], scale, min(stop, len(self)) - start)

    def reordered(self, index: Tensor) -> "PackedMatrix":
        """Return a copy of the rows `index`, in that order."""
        index = index.to(self.tiles.device)
        values, table = self._by_row()
        scale = None if self.row_scale is None else self.row_scale[index]
        return self._with(_to_tiles(values[index], table[index]), scale, len(index))

    def plain_values(self, start: int, stop: int) -> Tensor:
        """Return a copy of the quantized values of some rows, uint8 [rows, k].

        The matrix must have no groups, k must be a multiple of 64 and `start` a multiple of 8.
        """
        return self.rows(start, stop)._by_row()[0].flatten(1)

    def _by_row(self) -> tuple[Tensor, Tensor]:
        """Return copies of the quantized values and of the groups' scales: see `_to_tiles`."""
        tile_columns = PACKED_SCHEMES[self.scheme].tile_columns
        num_tiles = padded_columns(self.scheme, self.shape[1]) // tile_columns
        num_groups, entry_bytes = table_shape(self.scheme, self.group_size)
        num_bytes = TILE_ROWS * _ROW_BYTES
        tiles = self.tiles.view(len(self.tiles), num_tiles, -1)
        values, table = tiles[..., :num_bytes].view(_CHUNK), tiles[..., num_bytes:]
        values = values.reshape(*tiles.shape[:2], TILE_ROWS, -1)
        table = table.reshape(*tiles.shape[:2], num_groups, TILE_ROWS, entry_bytes).transpose(2, 3)
        by_row = (each.transpose(1, 2).flatten(0, 1)[: len(self)] for each in (values, table))
        values, table = by_row
        return values.view(torch.uint8), table

    def _with(self, tiles: Tensor, row_scale: Tensor | None, rows: int) -> "PackedMatrix":
        shape = rows, self.shape[1]
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
    """Pack weight[r, c] = scale[r] · e4m3(values[r, c]), or with groups scale[r, g] · e4m3(…).

    `values` is uint8 or float8 [rows, k], `scale` fp32 [rows] or [rows, groups], g = c // (columns
    // groups). Scales of groups are rounded as by `pack_int4`.
    """
    if scale.dim() == 1:
        return _pack_rows("FP8", values, scale, dtype)
    bits = values.view(torch.uint8)
    return _pack_groups("FP8", bits, bits.shape[1], scale.float(), None, dtype)


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


def pack_mxfp4(values: Tensor, scale: Tensor, dtype: torch.dtype) -> PackedMatrix:
    """Pack weight[r, c] = e2m1(values[r, c]) · 2^(scale[r, g] − 127), g = c // 32.

    `values` uint8 [rows, k / 2] has two columns a byte, the lower column in the lower half, `scale`
    uint8 [rows, k / 32] is up to `LARGEST_MXFP4_SCALE`. With fp16, weights below 2^−14 are rounded
    to its subnormal numbers.
    """
    if int(scale.max()) > LARGEST_MXFP4_SCALE:
        raise ValueError(f"MXFP4 with a scale of {int(scale.max())}")
    # The exponent field of the factor that makes weights of elements at the place of `dtype`.
    fields = (scale.int() + (-98 if dtype == torch.float16 else 126)).clamp_(min=0).byte()
    return _pack_e2m1("MXFP4", values, fields, None, dtype)


def pack_nvfp4(
    values: Tensor, scale: Tensor, row_scale: Tensor, dtype: torch.dtype
) -> PackedMatrix:
    """Pack weight[r, c] = row_scale[r] · e4m3(scale[r, g]) · e2m1(values[r, c]), g = c // 16.

    `values` uint8 [rows, k / 2] has two columns a byte, the lower column in the lower half; it is
    overwritten. `scale` uint8 [rows, k / 16] has no NaN, `row_scale` is fp32 [rows].
    """
    # A scale that is negative or 0 has no entry: it is left to its elements.
    for odd, kept, flipped in ((scale > 128, 0xFF, 0x88), (scale & 127 == 0, 0, 0)):
        if odd.any():
            groups = values.view(*scale.shape, -1)
            groups[odd] = groups[odd] & kept ^ flipped
    entries = _ENTRY_OF_E4M3.to(scale.device)[(scale & 127).long()]
    return _pack_e2m1("NVFP4", values, entries, row_scale * _NVFP4_ENTRY_FACTOR, dtype)


def _pack_e2m1(
    scheme: str, values: Tensor, entries: Tensor, row_scale: Tensor | None, dtype: torch.dtype
) -> PackedMatrix:
    """Pack elements with the entries of their groups, uint8 [rows, groups]."""
    rows, groups = entries.shape
    k = 2 * values.shape[1]
    group_size = _group_size(scheme, k, k // groups if k % groups == 0 else -1)
    padding = padded_columns(scheme, k) - k
    # Those of four threads' octets come first that the threads of the first columns need.
    words = F.pad(entries, (0, padding // group_size)).view(rows, -1, 4, 32 // group_size)
    table = words.transpose(2, 3).reshape(rows, -1, *table_shape(scheme, group_size))

    def tile_rows(part: slice) -> tuple[Tensor, Tensor]:
        return _nibbles_to_thread_order(F.pad(values[part], (0, padding // 2))), table[part]

    return _pack(scheme, dtype, (rows, k), tile_rows, row_scale, group_size, values.device)


def _pack_groups(
    scheme: str,
    values: Tensor,
    k: int,
    scale: Tensor,
    minus_zero: Tensor | None,
    dtype: torch.dtype,
) -> PackedMatrix:
    """Pack weight = scale · (value + minus_zero), both fp32 [rows, groups].

    Overwrites `values` if there are zero points.
    """
    rows, groups = scale.shape
    group_size = _group_size(scheme, k, k // groups if k % groups == 0 else -1)
    if minus_zero is not None:
        # fp16 does not hold larger zero points. Beside them the values hardly matter, so all
        # weights of such a group become scale * minus_zero.
        far = minus_zero.abs() > _MAX_ZERO_POINT
        values.view(rows, groups, -1)[far] = 0
        constant = scale * minus_zero
        scale = torch.where(far, constant.abs(), scale)
        minus_zero = torch.where(far, constant.sign(), minus_zero)
    largest = scale.abs().amax(1)
    exponent = torch.where(largest > 0, torch.frexp(largest).exponent - 1, 0)
    row_scale = torch.ldexp(torch.ones_like(largest), exponent)
    scale = scale / row_scale.unsqueeze(1)
    entries = scale.unsqueeze(2) if minus_zero is None else torch.stack([scale, minus_zero], 2)
    table = entries.half().repeat_interleave(k // groups // group_size, 1)
    padding = padded_columns(scheme, k) - k
    table = F.pad(table, (0, 0, 0, padding // group_size))
    table = table.view(rows, -1, PACKED_SCHEMES[scheme].tile_columns // group_size, table.shape[2])
    to_thread_order = _nibbles_to_thread_order if scheme == "INT4" else _bytes_to_thread_order

    def tile_rows(part: slice) -> tuple[Tensor, Tensor]:
        padded = F.pad(values[part], (0, values.shape[1] * padding // k))
        return to_thread_order(padded), table[part].view(torch.uint8)

    return _pack(scheme, dtype, (rows, k), tile_rows, row_scale, group_size, values.device)


def _pack_rows(scheme: str, values: Tensor, scale: Tensor, dtype: torch.dtype) -> PackedMatrix:
    rows, k = values.shape
    _group_size(scheme, k, 0)
    values, padding = values.view(torch.uint8), padded_columns(scheme, k) - k

    def tile_rows(part: slice) -> tuple[Tensor, Tensor]:
        padded = F.pad(values[part], (0, padding)).view(-1, (k + padding) // _ROW_BYTES, _ROW_BYTES)
        return padded, padded.new_empty(*padded.shape[:2], 0, 1)

    return _pack(scheme, dtype, (rows, k), tile_rows, scale.float(), 0, values.device)


def _pack(
    scheme: str,
    dtype: torch.dtype,
    shape: tuple[int, int],
    tile_rows: Callable[[slice], tuple[Tensor, Tensor]],
    row_scale: Tensor | None,
    group_size: int,
    device: torch.device,
) -> PackedMatrix:
    """Pack a matrix; `tile_rows(rows)` returns what `_to_tiles` takes for some rows."""
    rows, k = shape
    tiles = torch.empty(tiles_shape(scheme, rows, k, group_size), dtype=torch.uint8, device=device)
    step = max(1, _PACK_BYTES // k // TILE_ROWS) * TILE_ROWS
    for start in range(0, rows, step):
        blocks = _to_tiles(*tile_rows(slice(start, start + step)))
        tiles[start // TILE_ROWS :][: len(blocks)] = blocks
    return PackedMatrix(scheme, dtype, shape, tiles, row_scale, group_size)


def _to_tiles(values: Tensor, table: Tensor) -> Tensor:
    """Return the tiles of some rows in the order of `PackedMatrix.tiles`.

    `values` uint8 [rows, tiles, 64] are in the order of the threads; `table` uint8 [rows, tiles,
    groups, bytes] has the scale of each group and its zero point.
    """
    missing = -len(values) % TILE_ROWS
    blocks = (len(values) + missing) // TILE_ROWS, TILE_ROWS
    values = F.pad(values, (0, 0, 0, 0, 0, missing)).view(_CHUNK)
    tiles = values.view(*blocks, *values.shape[1:]).transpose(1, 2).flatten(2)
    if table.numel():
        table = F.pad(table, (0, 0, 0, 0, 0, 0, 0, missing)).view(*blocks, *table.shape[1:])
        entries = table.permute(0, 2, 3, 1, 4).flatten(2)
        tiles = torch.cat([tiles, entries.view(_CHUNK)], 2)
    return tiles.flatten(1).view(torch.uint8)


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


def _group_size(scheme: str, k: int, group_size: int) -> int:
    """Return the group size in which the kernels read rows; raise `ValueError` if they do not."""
    size = packed_group_size(scheme, k, group_size)
    if size is None:
        groups = f" in groups of {group_size}" if group_size else ""
        raise ValueError(f"the kernels do not read {scheme} rows of {k} columns{groups}")
    return size
