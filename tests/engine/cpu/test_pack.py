"""Matrices packed into tiles equal the matrices that they are packed from."""

import contextlib
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from swiftchat.engine.api.tile_layout import BLOCK_TYPES, TileLayout, block_layout
from swiftchat.engine.cpu.large_pages import LargePages
from swiftchat.engine.cpu.matrices import TiledMatrix
from swiftchat.engine.cpu.pack import Packer
from swiftchat.errors import BadModelFile
from swiftchat.weights.formats import ggml_dequantize
from swiftchat.weights.quantization.fp8 import FLOAT8
from swiftchat.weights.quantization.scheme import (
    GgufBlocks,
    Int4,
    Int8,
    Int8Groups,
    slice_blocks,
    slice_matrix,
)
from tests.support.cases import each_case
from tests.support.gguf.blocks import random_blocks, set_scales
from tests.support.native.guarded import before_guard_page
from tests.support.native.libraries import load
from tests.support.native.ops import each_variant

Doubles = npt.NDArray[np.float64]


# What the bits of a value stand for, in formats in which they are no integers.
NUMBERS = {
    "iq1": [-9, -7, -1, 1, 7, 9, 0, 0],
    "iq2": [8, 25, 43, 0, -8, -25, -43, 0],
    "iq3_xxs": [4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62],
    "iq3_s": [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15],
    "iq4": ggml_dequantize.IQ4_VALUES.tolist(),
    "e2m1": ggml_dequantize.DOUBLE_E2M1.tolist(),
}


def unpack_table(layout: TileLayout, table: npt.NDArray[np.uint8], is_minimum: bool) -> Doubles:
    """Return the entries of all tiles, [rows, groups], with those of missing rows."""
    table, groups = np.ascontiguousarray(table), layout.num_groups
    if layout.tables == "e8m0":  # twice e2m1 numbers have half the scale
        numbers = np.ldexp(1.0, table[:, : 16 * groups].astype(np.int32) - 128)
    elif layout.tables == "e4m3":
        bits = np.minimum(table[:, : 16 * groups] & 127, 126)
        numbers = FLOAT8["F8_E4M3"][bits].astype(np.float64) * layout.unit
        numbers[table[:, : 16 * groups] & 127 == 127] = 480 * layout.unit  # GGUF has no NaN
        numbers *= np.where(table[:, : 16 * groups] & 128, -1, 1)
    elif not layout.factor_cols:
        dtype = np.float32 if layout.tables == "fp32" else np.float16
        numbers = table.view(dtype)[:, : 16 * groups].astype(np.float64)
    else:
        end = 32 * layout.num_factors
        factors = np.ascontiguousarray(table[:, :end]).view(np.float16).astype(np.float64)
        factors = factors.reshape(len(table), -1, 16)
        entries = table[:, end:]
        if layout.tables == "nibbles":
            rows = entries[:, : -(-groups // 2) * 16].reshape(len(table), -1, 1, 16)
            entries = np.concatenate([rows & 15, rows >> 4], 2).reshape(len(table), -1)
        integers = entries[:, : 16 * groups].reshape(len(table), groups, 16)
        if layout.tables == "bytes" and not is_minimum:
            integers = integers.view(np.int8)
        repeated = np.repeat(factors, layout.factor_cols // layout.group_cols, 1)
        numbers = integers * repeated[:, :groups] * layout.unit
    transposed = numbers.reshape(len(table), groups, 16).transpose(0, 2, 1)
    return np.ascontiguousarray(transposed, np.float64).reshape(-1, groups)


def unpack_values(layout: TileLayout, values: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return the bits of all values, [rows, columns], with those of missing rows and columns."""
    bits, count = layout.value_bits, len(values)
    blocks = values.reshape(count, -1, bits, 16, 4).astype(np.int64)
    if bits == 8:
        columns = blocks.astype(np.uint8).view(np.int8).astype(np.int64)
    else:
        columns = np.zeros((count, blocks.shape[1], 8, 16, 4), np.int64)
        first = 0
        for width in (4, 2, 1):
            if not bits & width:
                continue
            for j in range(8):
                place, shift = {4: (j % 4, j // 4), 2: (j // 4, j % 4), 1: (0, j)}[width]
                plane = blocks[:, :, first + place] >> width * shift & (1 << width) - 1
                columns[:, :, j] |= plane << (bits & ~(2 * width - 1))
            first += width
    # [tiles, blocks, j, r, c] -> [tiles, r, blocks, j, c]
    return columns.transpose(0, 3, 1, 2, 4).reshape(count * 16, -1)


def unpack(matrix: TiledMatrix) -> Doubles:
    """Dequantize tiles in fp64; checks that missing rows and columns are zero."""
    layout, rows = matrix.layout, matrix.rows
    tiles = matrix.tiles.numpy()
    assert tiles.ctypes.data % 64 == 0 and tiles.shape[1] == layout.tile_bytes
    table_bytes = layout.table_bytes
    tables = []
    for i in range(1 + layout.has_minimum if layout.group_cols else 0):
        part = tiles[:, i * table_bytes : (i + 1) * table_bytes]
        table = unpack_table(layout, part, i == 1)
        assert (table[rows:] == (2.0**-128 if layout.tables == "e8m0" else 0)).all()
        tables.append(table[:rows])
    bits = unpack_values(layout, tiles[:, (1 + layout.has_minimum) * table_bytes :])
    assert not bits[rows:].any() and not bits[:, layout.cols :].any()
    weights = bits[:rows, : layout.cols].astype(np.float64)
    if layout.values in NUMBERS:
        weights = np.array(NUMBERS[layout.values], np.float64)[weights.astype(int)]
    elif layout.values != "int8" and not layout.has_minimum:
        weights -= 1 if layout.values == "int2" else 1 << layout.value_bits - 1
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
@each_case("type_name", sorted(BLOCK_TYPES))
def test_tiles_of_blocks_equal_dequantized_blocks(variant: str, type_name: str) -> None:
    """Exactly apart from one rounding of scale * value + minimum in fp32, in the reference."""
    blocks = random_blocks(type_name, 37, 512)
    expected = dequantized(blocks, type_name)
    (matrix,) = packer(variant).pack_blocks([whole(blocks, type_name)])
    assert_close(unpack(matrix), expected, term_sizes(expected), 2.0**-23)


@pytest.mark.parametrize("type_name", sorted(BLOCK_TYPES))
def test_tiles_have_about_the_bits_of_the_file(type_name: str) -> None:
    kind = ggml_dequantize.BLOCK_TYPES[type_name]
    file_bits = 8 * kind.block_bytes / kind.block_elements
    bits = 8 * block_layout(type_name, 4096).nbytes(1600) / (4096 * 1600)
    assert bits < 2 * file_bits and bits < file_bits + 1.6
    if type_name[0] in "QT" and type_name not in ("Q1_0", "TQ1_0"):
        assert bits < file_bits + 0.2


@pytest.mark.parametrize("type_name", ["Q4_0", "Q6_K"])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 333])
def test_any_number_of_rows(type_name: str, rows: int) -> None:
    blocks = random_blocks(type_name, rows, 256)
    (matrix,) = packer("plain").pack_blocks([whole(blocks, type_name)])
    expected = dequantized(blocks, type_name)
    assert_close(unpack(matrix), expected, term_sizes(expected), 2.0**-23)


@pytest.mark.parametrize("type_name", sorted(BLOCK_TYPES))
def test_slices_of_rows_and_columns(type_name: str) -> None:
    blocks = random_blocks(type_name, 50, 1024)
    expected = dequantized(blocks, type_name)
    rows, columns = [(3, 20), (31, 32), (40, 47)], [(992, 1024), (256, 544), (32, 96)]
    of_rows = slice_blocks(whole(blocks, type_name), 0, rows)
    of_columns = slice_blocks(whole(blocks, type_name), 1, columns)
    assert of_rows is not None and of_columns is not None
    assert of_columns.columns == 64 + 288 + 32
    for part, axis, spans in ((of_rows, 0, rows), (of_columns, 1, columns)):
        (matrix,) = packer("plain").pack_blocks([part])
        sliced = np.concatenate(
            [expected[a:b] if axis == 0 else expected[:, a:b] for a, b in spans], axis
        )
        assert_close(unpack(matrix), sliced, term_sizes(sliced), 2.0**-23)
    assert slice_blocks(whole(blocks, type_name), 1, [(16, 64)]) is None
    assert slice_blocks(of_columns, 1, [(0, 64)]) is None


def test_neighbors_of_one_layout_become_one_matrix_whose_tiles_have_one_part() -> None:
    counts = (("Q4_1", 32), ("Q4_1", 16), ("Q4_1", 5), ("Q4_1", 16), ("Q4_K", 16), ("Q6_K", 7))
    parts = [random_blocks(name, rows, 256, seed=i) for i, (name, rows) in enumerate(counts)]
    matrices = packer("plain").pack_blocks(
        [whole(part, name) for part, (name, _) in zip(parts, counts, strict=True)]
    )
    assert [matrix.rows for matrix in matrices] == [53, 16, 16, 7]
    found = np.concatenate([unpack(matrix) for matrix in matrices])
    expected = np.concatenate(
        [dequantized(part, name) for part, (name, _) in zip(parts, counts, strict=True)]
    )
    assert_close(found, expected, term_sizes(expected), 2.0**-23)


@pytest.mark.parametrize("type_name", sorted(BLOCK_TYPES - {"NVFP4"}))  # finite as it is
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_scales_that_are_not_finite_are_an_error(type_name: str, value: float) -> None:
    blocks = random_blocks(type_name, 40, 256)
    set_scales(blocks, type_name, [value])
    with pytest.raises(BadModelFile, match=r"some\.weight.*finite"):
        packer("plain").pack_blocks([whole(blocks, type_name)])


@each_variant
@each_case("type_name", sorted(BLOCK_TYPES))
def test_any_bytes_are_packed_or_rejected(variant: str, type_name: str) -> None:
    kind = ggml_dequantize.BLOCK_TYPES[type_name]
    rng = np.random.default_rng(1)
    for _ in range(20):
        shape = int(rng.integers(1, 40)), 512 // kind.block_elements * kind.block_bytes
        blocks = rng.integers(0, 256, shape, dtype=np.uint8)
        with contextlib.suppress(BadModelFile):
            packer(variant).pack_blocks([whole(blocks, type_name)])


def random_int4(rows: int, columns: int, group_size: int, zero_points: str) -> Int4:
    rng, groups = np.random.default_rng(rows), columns // group_size
    zero_point = {
        "centered": np.full((rows, groups), 8.0),
        "integers": rng.integers(0, 16, (rows, groups)).astype(np.float64),
        "fractions": rng.normal(8, 3, (rows, groups)),
    }[zero_points]
    return Int4(
        rng.integers(0, 256, (rows, columns // 2), dtype=np.uint8),
        rng.normal(size=(rows, groups)).astype(np.float32),
        zero_point.astype(np.float32),
    )


def weights_of(matrix: Int4 | Int8 | Int8Groups) -> Doubles:
    if isinstance(matrix, Int8):
        return matrix.values * matrix.scale.astype(np.float64)[:, None]
    values = matrix.values
    if isinstance(matrix, Int4):
        values = np.stack([values & 15, values >> 4], 2).reshape(len(values), -1)
    group_size = values.shape[1] // matrix.scale.shape[1]
    scale, zero_point = (
        np.repeat(table.astype(np.float64), group_size, 1)
        for table in (matrix.scale, matrix.zero_point)
    )
    result: Doubles = (values - zero_point) * scale
    return result


def assert_packed(matrix: Int4 | Int8 | Int8Groups, variant: str = "plain") -> TiledMatrix:
    """Check both kinds of tables; a weight is the difference of terms of at most 256 scales."""
    expected = weights_of(matrix)
    sizes = 0.0 if isinstance(matrix, Int8) else 256 * np.abs(matrix.scale).max()
    exact = packer(variant).pack([matrix], exact=True)
    rounded = packer(variant).pack([matrix], exact=False)
    assert exact is not None and rounded is not None
    assert_close(unpack(exact[0]), expected, sizes, 2.0**-23)
    assert_close(unpack(rounded[0]), expected, sizes, 2.0**-11)
    return rounded[0]


@each_variant
@each_case("zero_points", ["centered", "integers", "fractions"])
@each_case(
    ("columns", "group_size", "group_cols"),
    [
        *((96, 32, 32), (256, 128, 128), (96, 48, 16), (80, 16, 16), (64, 64, 64)),
        *((40, 40, 64), (2, 2, 32), (66, 66, 96)),
    ],
)
def test_int4_of_all_group_sizes(
    variant: str, columns: int, group_size: int, group_cols: int, zero_points: str
) -> None:
    packed = assert_packed(random_int4(21, columns, group_size, zero_points), variant)
    assert packed.layout.group_cols == group_cols
    assert packed.layout.has_minimum == (zero_points != "centered")
    assert packed.layout.tables == "fp16"


@each_variant
@each_case("is_centered", [True, False])
@each_case(("columns", "group_size"), [(96, 32), (96, 48), (45, 45), (48, 16)])
def test_int8_groups(variant: str, columns: int, group_size: int, is_centered: bool) -> None:
    rng, groups = np.random.default_rng(2), columns // group_size
    zero_point = np.full((19, groups), 128.0) if is_centered else rng.normal(120, 30, (19, groups))
    matrix = Int8Groups(
        rng.integers(0, 256, (19, columns), dtype=np.uint8),
        rng.normal(size=(19, groups)).astype(np.float32),
        zero_point.astype(np.float32),
    )
    assert assert_packed(matrix, variant).layout.has_minimum == (not is_centered)


@each_variant
@each_case("columns", [1, 31, 32, 77])
def test_int8_with_scales_of_rows(variant: str, columns: int) -> None:
    rng = np.random.default_rng(3)
    values = rng.integers(-128, 128, (35, columns), dtype=np.int8)
    matrix = Int8(values, rng.normal(size=35).astype(np.float32))
    assert assert_packed(matrix, variant).layout.group_cols == 0


def test_sliced_arrays() -> None:
    """Slices are views whose rows are apart; a group that is cut becomes smaller ones."""
    int4 = random_int4(40, 256, 64, "integers")
    for axis, spans in ((0, [(5, 30)]), (1, [(64, 192)]), (1, [(32, 64), (96, 256)])):
        part = slice_matrix(int4, axis, spans)
        assert isinstance(part, Int4)
        assert_packed(part)
    small_groups = slice_matrix(int4, 1, [(8, 256)])
    assert isinstance(small_groups, Int4)
    assert packer("plain").pack([small_groups], exact=False) is None


def test_scales_that_fp16_cannot_hold_stay_fp32() -> None:
    matrix = random_int4(16, 64, 32, "integers")
    matrix.scale[0, 0] = 1e-20
    assert assert_packed(matrix).layout.tables == "fp32"


@each_variant
@each_case("type_name", sorted(BLOCK_TYPES))
def test_reordered_rows(variant: str, type_name: str) -> None:
    blocks = random_blocks(type_name, 75, 256)
    pack = packer(variant)
    order = torch.from_numpy(np.random.default_rng(4).permutation(75))
    (matrix,) = pack.pack_blocks([whole(blocks, type_name)])
    for some in (order, order[:20]):
        assert np.array_equal(unpack(pack.reordered(matrix, some)), unpack(matrix)[some])
    for wrong in (order + 1, order - 1):
        with pytest.raises(ValueError, match="other numbers"):
            pack.reordered(matrix, wrong)


def test_reordered_scales_of_rows() -> None:
    rng = np.random.default_rng(5)
    values = rng.integers(-128, 128, (35, 40), dtype=np.int8)
    pack = packer("plain")
    matrices = pack.pack([Int8(values, rng.normal(size=35).astype(np.float32))], exact=False)
    assert matrices is not None
    order = torch.arange(35).flip(0)
    moved = pack.reordered(matrices[0], order)
    assert np.array_equal(unpack(moved), unpack(matrices[0])[::-1])


@pytest.mark.parametrize("num_threads", [1, 3])
def test_large_matrices_are_packed_by_several_threads(num_threads: int) -> None:
    blocks = random_blocks("Q8_0", 1500, 4096)
    (matrix,) = packer("plain", num_threads).pack_blocks([whole(blocks, "Q8_0")])
    assert_close(unpack(matrix), dequantized(blocks, "Q8_0"), 0.0, 0.0)


@each_variant
@each_case("type_name", sorted(BLOCK_TYPES))
def test_only_memory_of_the_blocks_and_tiles_is_used(
    variant: str, type_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LargePages, "allocate", guarded_tiles)
    blocks = random_blocks(type_name, 21, 512)
    guarded = before_guard_page(torch.from_numpy(blocks)).numpy()
    pack = packer(variant)
    (matrix,) = pack.pack_blocks([whole(guarded, type_name)])
    moved = pack.reordered(matrix, torch.arange(21).flip(0))
    assert np.array_equal(unpack(moved), unpack(matrix)[::-1])


@each_variant
@each_case("columns", [2, 66, 96])
def test_only_memory_of_the_arrays_is_used(
    variant: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LargePages, "allocate", guarded_tiles)
    int4 = random_int4(21, columns, columns, "integers")
    rng = np.random.default_rng(6)
    int8 = Int8(rng.integers(-128, 128, (21, columns), dtype=np.int8), np.ones(21, np.float32))
    for matrix in (int4, int8):
        values = before_guard_page(torch.from_numpy(matrix.values)).numpy()
        assert packer(variant).pack([replace(matrix, values=values)], exact=False)


def guarded_tiles(pages: LargePages, nbytes: int) -> torch.Tensor:
    return before_guard_page(torch.zeros(nbytes, dtype=torch.uint8))
