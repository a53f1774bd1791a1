"""Random matrices in the tiled layout of kernels/matrix.h, packed by a plain program."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from swiftchat.engine.cpu.native import BLOCK_COLS, TILE_ROWS, Format, Matrix, Tables
from tests.support.native.ops import aligned


class Layout(NamedTuple):
    """How a tiled matrix is quantized; `group_cols` 0: with scales of rows only."""

    format: Format
    group_cols: int
    has_minimum: bool = False
    tables: Tables = Tables.FP16
    factor_cols: int = 0
    unit: float = 1.0


# The numbers that the bits of a value stand for, in formats in which they are no integers.
NUMBERS = {
    Format.IQ1: [-9, -7, -1, 1, 7, 9],
    Format.IQ2: [8, 25, 43, 0, -8, -25, -43],
    Format.IQ3_XXS: [4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62],
    Format.IQ3_S: [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15],
    Format.IQ4: [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
    Format.E2M1: [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12],  # times two
}
VALUE_BITS = {
    Format.INT2: 2,
    **dict.fromkeys((Format.INT3, Format.IQ1, Format.IQ2), 3),
    Format.INT5: 5,
    Format.INT6: 6,
    Format.INT8: 8,
}  # others have 4
LAYOUTS = (
    Layout(Format.INT2, 256),
    Layout(Format.INT2, 32, True, Tables.BYTES, 256, 1 / 8),
    Layout(Format.INT2, 16, True, Tables.NIBBLES, 64),
    Layout(Format.INT3, 16, False, Tables.BYTES, 256),
    Layout(Format.INT4, 0),
    Layout(Format.INT4, 32),
    Layout(Format.INT4, 32, has_minimum=True),
    Layout(Format.INT4, 128),
    Layout(Format.INT4, 64, has_minimum=True, tables=Tables.FP32),
    Layout(Format.INT4, 16, tables=Tables.FP32),
    Layout(Format.INT4, 16, has_minimum=True),
    Layout(Format.INT4, 32, True, Tables.BYTES, 32),
    Layout(Format.INT5, 32),
    Layout(Format.INT5, 32, has_minimum=True),
    Layout(Format.INT5, 32, True, Tables.BYTES, 256),
    Layout(Format.INT6, 16, False, Tables.BYTES, 128),
    Layout(Format.INT8, 0),
    Layout(Format.INT8, 32),
    Layout(Format.INT8, 16),
    Layout(Format.INT8, 16, has_minimum=True, tables=Tables.FP32),
    Layout(Format.INT8, 64, has_minimum=True),
    Layout(Format.INT8, 256, has_minimum=True),
    Layout(Format.IQ1, 16, False, Tables.NIBBLES, 256, 1 / 8),
    Layout(Format.IQ2, 32, False, Tables.BYTES, 256, 1 / 8),
    Layout(Format.IQ2, 16, False, Tables.BYTES, 256, 1 / 8),
    Layout(Format.IQ3_XXS, 32, False, Tables.BYTES, 256, 1 / 4),
    Layout(Format.IQ3_S, 32, False, Tables.BYTES, 256),
    Layout(Format.IQ4, 32),
    Layout(Format.IQ4, 32, False, Tables.BYTES, 256),
    Layout(Format.E2M1, 16, tables=Tables.E4M3, unit=1 / 256),
    Layout(Format.E2M1, 32, tables=Tables.E4M3),
    Layout(Format.E2M1, 32, tables=Tables.E8M0),
    Layout(Format.E2M1, 16, tables=Tables.E8M0),
)


@dataclass(frozen=True)
class Tiles:
    """A packed matrix, its fp64 values [rows, cols], and the tensors that hold its memory.

    `quantized` are its integers [rows, cols], centered; `scales` and `minimums` are fp32 [rows,
    groups], without columns if the matrix has none.
    """

    matrix: Matrix
    dequantized: Tensor
    tensors: tuple[Tensor, ...]
    quantized: Tensor
    scales: Tensor
    minimums: Tensor


def random_tiles(layout: Layout, rows: int, cols: int, seed: int = 0) -> Tiles:
    """Return a random matrix with row scales."""
    format, group_cols, has_minimum, tables, factor_cols, unit = layout
    generator = torch.Generator().manual_seed(seed)
    bits, numbers = VALUE_BITS.get(format, 4), torch.tensor(NUMBERS.get(format, []))
    low, high = (-128, 128) if bits == 8 else (0, len(numbers) or 1 << bits)
    values = torch.randint(low, high, (rows, cols), generator=generator)
    num_groups = -(-cols // group_cols) if group_cols else 0
    found = [
        _random_table(layout, i == 1, rows, cols, generator)
        for i in range(1 + has_minimum if group_cols else 0)
    ]
    scales, minimums = (
        found[i][1] if i < len(found) else torch.zeros(rows, num_groups) for i in (0, 1)
    )
    row_scale = aligned(torch.rand(rows, generator=generator) + 0.5)
    center = 0 if has_minimum or bits == 8 else 1 if bits == 2 else 1 << bits - 1
    centered = numbers[values] if len(numbers) else values - center
    wide = centered.double()
    if group_cols:
        wide *= scales.double().repeat_interleave(group_cols, 1)[:, :cols]
    if has_minimum:
        wide += minimums.double().repeat_interleave(group_cols, 1)[:, :cols]
    parts = [*(stored for stored, _ in found), _values(values, bits)]
    packed = aligned(torch.cat(parts, 1))
    matrix = Matrix(
        format=format,
        rows=rows,
        cols=cols,
        group_cols=group_cols,
        has_minimum=has_minimum,
        tables=tables,
        factor_cols=factor_cols,
        unit=unit,
        stride=packed.shape[1],
        data=packed.data_ptr(),
        row_scale=row_scale.data_ptr(),
    )
    return Tiles(
        matrix=matrix,
        dequantized=wide * row_scale.double().unsqueeze(1),
        tensors=(packed, row_scale),
        quantized=centered,
        scales=scales.float(),
        minimums=minimums.float() if has_minimum else torch.empty(rows, 0),
    )


def _random_table(
    layout: Layout, is_minimum: bool, rows: int, cols: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return a table as bytes [tiles, n], and its entries as numbers [rows, groups]."""
    num_groups = -(-cols // layout.group_cols)
    shape = (rows, num_groups)
    if layout.tables == Tables.E8M0:
        exponents = torch.randint(118, 128, shape, generator=generator).byte()
        exponents[::3, ::5] = 0  # 2^-127, a subnormal number
        return _table(exponents), (2.0 ** (exponents.double() - 128)).float()
    if layout.tables == Tables.E4M3:
        bits = torch.randint(0, 256, shape, generator=generator).byte()
        bits[(bits & 127) == 127] = 0  # NaN
        return _table(bits), bits.view(torch.float8_e4m3fn).float() * layout.unit
    if not layout.factor_cols:
        dtype = torch.float32 if layout.tables == Tables.FP32 else torch.float16
        entries = torch.randn(shape, generator=generator).div(16).to(dtype)
        return _table(entries), entries.float()
    factors = torch.randn(rows, -(-cols // layout.factor_cols), generator=generator).div(256).half()
    is_signed = layout.tables == Tables.BYTES and not is_minimum
    low, high = (-128, 128) if is_signed else (0, 16 if layout.tables == Tables.NIBBLES else 256)
    integers = torch.randint(low, high, shape, generator=generator)
    repeated = factors.float().repeat_interleave(layout.factor_cols // layout.group_cols, 1)
    numbers = repeated[:, :num_groups] * layout.unit * integers
    stored = (integers & 255).to(torch.uint8)
    if layout.tables == Tables.NIBBLES:
        stored = torch.nn.functional.pad(stored, (0, num_groups % 2))
        stored = stored[:, ::2] | stored[:, 1::2] << 4
    return _table(factors, stored), numbers


def _tile_rows(values: Tensor) -> Tensor:
    """Split [rows, n] into [tiles, 16, n]; missing rows are zero."""
    padded = torch.zeros(-(-len(values) // TILE_ROWS) * TILE_ROWS, values.shape[1]).to(values.dtype)
    padded[: len(values)] = values
    return padded.view(-1, TILE_ROWS, values.shape[1])


def _table(*parts: Tensor) -> Tensor:
    """Return parts of a table, [rows, n] each, as bytes [tiles, n], n a multiple of 64."""
    rows = [_tile_rows(part).transpose(1, 2).contiguous() for part in parts]
    table_bytes = torch.cat([row.view(len(row), -1).view(torch.uint8) for row in rows], 1)
    return torch.nn.functional.pad(table_bytes, (0, -table_bytes.shape[1] % 64))


def _values(values: Tensor, bits: int) -> Tensor:
    """Return values [rows, cols] as bytes [tiles, n]."""
    values = torch.nn.functional.pad(values, (0, -values.shape[1] % BLOCK_COLS))
    # [tiles, 16, blocks, j, c] -> [tiles, blocks, j, 16, c]
    split = _tile_rows(values).unflatten(2, (-1, 8, 4)).permute(0, 2, 3, 1, 4) & 255
    if bits == 8:
        return split.to(torch.uint8).flatten(1)
    planes = []
    if bits & 4:
        planes.append(split[:, :, :4] & 15 | (split[:, :, 4:] & 15) << 4)
    if bits & 2:
        pairs = split >> (bits & 4) & 3
        halves = (pairs[:, :, 0:4], pairs[:, :, 4:8])
        planes += [sum(half[:, :, j : j + 1] << 2 * j for j in range(4)) for half in halves]
    if bits & 1:
        ones = split >> (bits & 6) & 1
        planes.append(sum(ones[:, :, j : j + 1] << j for j in range(8)))
    return torch.cat(planes, 2).to(torch.uint8).flatten(1)
