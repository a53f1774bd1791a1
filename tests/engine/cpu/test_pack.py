"""Matrices packed into tiles equal the matrices that they are packed from."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from swiftchat.engine.cpu.matrices import TiledMatrix
from swiftchat.engine.cpu.pack import BLOCK_TYPES, Packer
from swiftchat.engine.cpu.structures import Format
from swiftchat.weights.formats import ggml_dequantize
from swiftchat.weights.quantization.scheme import (
    GgufBlocks,
)
from tests.support.ggml_blocks import random_blocks
from tests.support.native_ops import each_variant, load

Doubles = npt.NDArray[np.float64]


def unpack(matrix: TiledMatrix) -> Doubles:
    """Dequantize tiles in fp64; checks that missing rows and columns are zero."""
    layout, rows = matrix.layout, matrix.rows
    tiles = matrix.tiles.numpy()
    assert tiles.ctypes.data % 64 == 0 and tiles.shape[1] == layout.tile_bytes
    table_bytes = layout.table_bytes
    tables = []
    for i in range(1 + layout.has_minimum if layout.group_cols else 0):
        part = np.ascontiguousarray(tiles[:, i * table_bytes : (i + 1) * table_bytes])
        groups = -(-layout.cols // layout.group_cols)
        numbers = part.view(np.float32 if layout.wide_tables else np.float16)
        table = numbers[:, : 16 * groups].reshape(-1, groups, 16).transpose(0, 2, 1)
        assert not table.reshape(-1, groups)[rows:].any()
        tables.append(table.reshape(-1, groups)[:rows].astype(np.float64))
    values = tiles[:, (1 + layout.has_minimum) * table_bytes :]
    if layout.format == Format.INT4:
        quarters = values.reshape(len(tiles), -1, 1, 4, 16, 4)
        split = np.concatenate([quarters & 15, quarters >> 4], 2).astype(np.float64)
    else:
        split = values.view(np.int8).reshape(len(tiles), -1, 2, 4, 16, 4).astype(np.float64)
    # [tiles, blocks, halves, j, r, c] -> [tiles, r, blocks, halves, j, c]
    wide = split.transpose(0, 4, 1, 2, 3, 5).reshape(len(tiles) * 16, -1)
    assert not wide[rows:].any() and not wide[:, layout.cols :].any()
    weights: Doubles = wide[:rows, : layout.cols]
    if layout.format == Format.INT4 and not layout.has_minimum:
        weights = weights - 8
    expanded = [np.repeat(table, layout.group_cols, 1)[:, : layout.cols] for table in tables]
    if expanded:
        weights = weights * expanded[0]
    if layout.has_minimum:
        weights = weights + expanded[1]
    if matrix.row_scale is not None:
        weights = weights * matrix.row_scale.double().numpy()[:, None]
    return weights


def packer(variant: str, num_threads: int = 2) -> Packer:
    return Packer(load(variant), num_threads)


def whole(blocks: npt.NDArray[np.uint8], type_name: str) -> GgufBlocks:
    kind = ggml_dequantize.BLOCK_TYPES[type_name]
    columns = blocks.shape[1] // kind.block_bytes * kind.block_elements
    return GgufBlocks(type_name, blocks, [(0, columns)], "some.weight")


def dequantized(blocks: npt.NDArray[np.uint8], type_name: str) -> Doubles:
    return ggml_dequantize.dequantize(blocks, type_name).astype(np.float64)


def assert_close(found: Doubles, expected: Doubles, size: Doubles | float, unit: float) -> None:
    """Check that the error is at most `unit` of the terms of a weight, which are up to `size`."""
    assert found.shape == expected.shape
    assert (np.abs(found - expected) <= unit * size + 1e-30).all()


def term_sizes(expected: Doubles) -> Doubles:
    """Return bounds of |scale * value| and |minimum|: three times the group's largest |weight|."""
    groups = np.abs(expected).reshape(len(expected), -1, 16).max(2)
    return np.repeat(3 * groups, 16, 1)


@each_variant
@pytest.mark.parametrize("type_name", sorted(BLOCK_TYPES))
def test_tiles_of_blocks_equal_dequantized_blocks(variant: str, type_name: str) -> None:
    """Exactly apart from one rounding of scale * value + minimum in fp32, in the reference."""
    blocks = random_blocks(type_name, 37, 512)
    expected = dequantized(blocks, type_name)
    (exact,) = packer(variant).pack_blocks([whole(blocks, type_name)], exact=True)
    assert_close(unpack(exact), expected, term_sizes(expected), 2.0**-23)
    (rounded,) = packer(variant).pack_blocks([whole(blocks, type_name)], exact=False)
    assert_close(unpack(rounded), expected, term_sizes(expected), 2.0**-10)
    if type_name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"):
        assert not exact.layout.wide_tables and torch.equal(exact.tiles, rounded.tiles)
