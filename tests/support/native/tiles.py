"""Random matrices in the tiled layout of kernels/matrix.h, packed by a plain program."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from swiftchat.engine.cpu.native import BLOCK_COLS, TILE_ROWS, Format, Matrix
from tests.support.native.ops import aligned


class Layout(NamedTuple):
    """How a tiled matrix is quantized; `group_cols` 0: with scales of rows only."""

    format: Format
    group_cols: int
    has_minimum: bool = False
    wide_tables: bool = False


# The numbers of e2m1 by their bits, times two.
DOUBLE_E2M1 = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
LAYOUTS = (
    Layout(Format.INT4, 0),
    Layout(Format.INT4, 32),
    Layout(Format.INT4, 32, has_minimum=True),
    Layout(Format.INT4, 128),
    Layout(Format.INT4, 64, has_minimum=True, wide_tables=True),
    Layout(Format.INT4, 16, wide_tables=True),
    Layout(Format.INT4, 16, has_minimum=True),
    Layout(Format.INT8, 0),
    Layout(Format.INT8, 32),
    Layout(Format.INT8, 16),
    Layout(Format.INT8, 16, has_minimum=True, wide_tables=True),
    Layout(Format.INT8, 64, has_minimum=True),
    Layout(Format.INT8, 256, has_minimum=True),
    Layout(Format.MXFP4, 32),
    Layout(Format.MXFP4, 16),
    Layout(Format.NVFP4, 32),
    Layout(Format.NVFP4, 16),
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
    format, group_cols, has_minimum, wide_tables = layout
    generator = torch.Generator().manual_seed(seed)
    low, high = (-128, 128) if format == Format.INT8 else (0, 16)
    values = torch.randint(low, high, (rows, cols), generator=generator)
    table_dtype = torch.float32 if wide_tables else torch.float16
    num_groups = -(-cols // group_cols) if group_cols else 0
    scales, minimums = (
        torch.randn(2, rows, num_groups, generator=generator).div(high).to(table_dtype)
    )
    stored_scales = scales
    if format == Format.MXFP4:
        stored_scales = torch.randint(118, 128, scales.shape, generator=generator).byte()
        stored_scales[::3, ::5] = 0  # 2^-127, a subnormal number
        scales = (2.0 ** (stored_scales.double() - 128)).float()
    if format == Format.NVFP4:
        stored_scales = torch.randint(0, 256, scales.shape, generator=generator).byte()
        stored_scales[(stored_scales & 127) == 127] = 0  # NaN
        scales = stored_scales.view(torch.float8_e4m3fn).float() / 256
    row_scale = aligned(torch.rand(rows, generator=generator) + 0.5)
    center = 8 if format == Format.INT4 and not has_minimum else 0
    centered = DOUBLE_E2M1[values] if format >= Format.MXFP4 else values - center
    wide = centered.double()
    if group_cols:
        wide *= scales.double().repeat_interleave(group_cols, 1)[:, :cols]
    if has_minimum:
        wide += minimums.double().repeat_interleave(group_cols, 1)[:, :cols]
    tables = ([stored_scales] if group_cols else []) + ([minimums] if has_minimum else [])
    parts = [*map(_table, tables), _values(values, format)]
    packed = aligned(torch.cat(parts, 1))
    matrix = Matrix(
        format=format,
        rows=rows,
        cols=cols,
        group_cols=group_cols,
        has_minimum=has_minimum,
        wide_tables=wide_tables,
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


def _tile_rows(values: Tensor) -> Tensor:
    """Split [rows, n] into [tiles, 16, n]; missing rows are zero."""
    padded = torch.zeros(-(-len(values) // TILE_ROWS) * TILE_ROWS, values.shape[1]).to(values.dtype)
    padded[: len(values)] = values
    return padded.view(-1, TILE_ROWS, values.shape[1])


def _table(scales: Tensor) -> Tensor:
    """Return scales [rows, groups] as bytes [tiles, n], n a multiple of 64."""
    table = _tile_rows(scales).transpose(1, 2).contiguous()
    table_bytes = table.view(len(table), -1).view(torch.uint8)
    nbytes = table_bytes.shape[1]
    return torch.nn.functional.pad(table_bytes, (0, -nbytes % 64))


def _values(values: Tensor, format: Format) -> Tensor:
    """Return values [rows, cols] as bytes [tiles, n]."""
    values = torch.nn.functional.pad(values, (0, -values.shape[1] % BLOCK_COLS))
    # [tiles, 16, blocks, j, c] -> [tiles, blocks, j, 16, c]
    split = _tile_rows(values).unflatten(2, (-1, 8, 4)).permute(0, 2, 3, 1, 4)
    if format != Format.INT8:
        split = split[:, :, :4] | split[:, :, 4:] << 4
    return (split & 255).to(torch.uint8).flatten(1)
