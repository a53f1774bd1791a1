"""Weights for the native kernels: matmuls and rows against the dequantized matrix in fp64."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from swiftchat.engine.api.tile_layout import BLOCK_TYPES, block_layout
from swiftchat.engine.cpu.matrices import FloatMatrix, TiledMatrix
from swiftchat.engine.cpu.native_weights import NativeWeight, NativeWeights
from swiftchat.engine.linear.merged import MergedWeight
from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.weights.formats.ggml_dequantize import dequantize
from swiftchat.weights.quantization.scheme import (
    Float8,
    GgufBlocks,
    Int4,
    Int8,
)
from tests.support.cases import each_case
from tests.support.gguf.blocks import random_blocks
from tests.support.native.ops import each_variant, pool

# A 16-bit activation errs by at most 2^-16 of the largest of its 32, fp16 scales by 2^-11 of
# themselves, bfloat16 results by 2^-9.
UNITS = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
ROWS, COLUMNS = 53, 256


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def factory(variant: str) -> NativeWeights:
    return NativeWeights(pool(variant))


def block_weight(
    weights: NativeWeights, type_name: str, dtype: torch.dtype, rows: int = ROWS
) -> tuple[NativeWeight, Tensor]:
    """Return a weight and its matrix in fp64."""
    blocks = random_blocks(type_name, rows, COLUMNS)
    part = GgufBlocks(type_name, blocks, [(0, COLUMNS)], "some.weight")
    weight = weights.from_blocks([part], dtype, lambda: None)
    assert isinstance(weight, NativeWeight)
    return weight, torch.from_numpy(dequantize(blocks, type_name)).double()


def assert_matmul(weight: NativeWeight, matrix: Tensor, dtype: torch.dtype) -> None:
    """Errors are relative to the product of the absolute values, the largest ones of 32 columns."""
    assert weight.shape == tuple(matrix.shape) and weight.dtype == dtype
    generator = torch.Generator().manual_seed(1)
    bias = torch.randn(len(matrix), generator=generator).to(dtype)
    sizes = matrix.abs().unflatten(1, (-1, 32)).amax(2).repeat_interleave(32, 1)
    for n in (1, 3, 8, 40):
        x = torch.randn(n, matrix.shape[1], generator=generator).to(dtype)
        wide = x.double().abs().unflatten(1, (-1, 32)).amax(2).repeat_interleave(32, 1)
        allowed = 4 * UNITS[dtype] * (wide @ sizes.t()) / 32**0.5
        for given in (None, bias):
            out = weight.matmul(x, given)
            expected = x.double() @ matrix.t() + (0 if given is None else given.double())
            assert out.dtype == dtype and out.shape == expected.shape
            assert ((out.double() - expected).abs() <= allowed + UNITS[dtype]).all()
        assert weight.matmul_fp32(x).dtype == torch.float32


@each_variant
@each_case("type_name", sorted(BLOCK_TYPES))
def test_matmul_of_blocks(variant: str, type_name: str) -> None:
    for dtype in UNITS:
        assert_matmul(*block_weight(factory(variant), type_name, dtype), dtype)


@each_variant
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_plain_matrices_are_not_copied(variant: str, dtype: torch.dtype) -> None:
    tensor = torch.randn(33, 96).to(dtype)
    weight = factory(variant).plain(tensor)
    assert isinstance(weight, NativeWeight) and not weight.is_quantized
    assert weight.native_matrices[0].data == tensor.data_ptr()
    assert [t.data_ptr() for t in weight.tensors] == [tensor.data_ptr()]
    assert_matmul(weight, tensor.double(), dtype)
    ids = torch.tensor([32, 0, 5, 5])
    assert torch.equal(weight.rows(ids), tensor[ids])
    order = torch.randperm(33)
    moved = weight.reordered(order)
    assert torch.equal(moved.rows(torch.arange(33)), tensor[order])
    for copy in (True, False):
        turned = weight.transposed(copy=copy)
        assert isinstance(turned, NativeWeight)
        assert torch.equal(turned.rows(torch.arange(96)), tensor.t())


def assert_rows(weight: NativeWeight, matrix: Tensor, dtype: torch.dtype) -> None:
    ids = torch.tensor([0, len(matrix) - 1, 3, 3])
    allowed = matrix[ids].abs() * max(UNITS[dtype], 2.0**-22) + 1e-30
    assert ((weight.rows(ids).double() - matrix[ids]).abs() <= allowed).all()


def random_fp8(rows: int, columns: int, seed: int, groups: int = 1) -> tuple[Float8, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator).mul(40).to(torch.float8_e4m3fn)
    scale = torch.rand(rows, groups, generator=generator) + 0.1
    matrix = Float8(values.view(torch.uint8).numpy(), scale.numpy())
    return matrix, values.double() * scale.double().repeat_interleave(columns // groups, 1)


@each_variant
@each_case("dtype", UNITS)
@each_case(("columns", "groups"), [(64, 1), (288, 9), (384, 3), (672, 7)])
def test_fp8_with_scales_of_rows_and_groups(
    variant: str, dtype: torch.dtype, columns: int, groups: int
) -> None:
    """The values of one matrix stay where they are, those of several are joined."""
    first, second = (random_fp8(rows, columns, rows, groups) for rows in (17, 20))
    weight = factory(variant).quantized([first[0]], dtype)
    assert isinstance(weight, NativeWeight) and weight.is_quantized
    assert weight.native_matrices[0].data == first[0].values.ctypes.data
    assert_rows(weight, first[1], dtype)
    assert_matmul(weight, first[1], dtype)
    joined = factory(variant).quantized([first[0], second[0]], dtype)
    assert isinstance(joined, NativeWeight)
    assert_matmul(joined, torch.cat([first[1], second[1]]), dtype)
    order = torch.randperm(17)
    assert_matmul(weight.reordered(order), first[1][order], dtype)
    other = factory(variant).quantized([first[0], random_fp8(5, columns, 5, 2 * groups)[0]], dtype)
    expected = 2 if columns // groups % 64 == 0 else None
    assert (other and len(other.native_matrices)) == expected


@each_variant
def test_int8_with_scales_of_rows(variant: str) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(-128, 128, (37, 96), dtype=np.int8)
    scale = (rng.random(37) + 0.1).astype(np.float32)
    matrix = torch.from_numpy(values).double() * torch.from_numpy(scale).double().unsqueeze(1)
    for dtype in UNITS:
        weight = factory(variant).quantized([Int8(values, scale / 127)], dtype)
        assert isinstance(weight, NativeWeight)
        assert_matmul(weight, matrix / 127, dtype)
        assert_rows(weight, matrix / 127, dtype)


@each_variant
@each_case("type_name", sorted(BLOCK_TYPES))
def test_rows_of_a_table(variant: str, type_name: str) -> None:
    """In fp32 exactly, apart from the rounding of scale * value + minimum."""
    ids = torch.tensor([52, 0, 17, 17, 31])
    for dtype in UNITS:
        weight, matrix = block_weight(factory(variant), type_name, dtype)
        rows = weight.rows(ids)
        assert rows.dtype == dtype and weight.supports_rows
        groups = matrix.abs().unflatten(1, (-1, 16)).amax(2).repeat_interleave(16, 1)
        allowed = 3 * groups[ids] * max(UNITS[dtype], 2.0**-22) + 1e-30
        assert ((rows.double() - matrix[ids]).abs() <= allowed).all()
    assert weight.rows(torch.empty(0, dtype=torch.int64)).shape == (0, COLUMNS)
    for wrong in (-1, ROWS):
        with pytest.raises(IndexError, match="53 rows"):
            weight.rows(torch.tensor([0, wrong]))


def mixed(weights: NativeWeights, dtype: torch.dtype) -> tuple[NativeWeight, Tensor]:
    """Return two quantized matrices, the first without whole tiles, and a plain one."""
    q4, q6 = block_weight(weights, "Q4_1", dtype, 40), block_weight(weights, "Q6_K", dtype, 16)
    tensor = torch.randn(24, COLUMNS).to(dtype)
    plain = weights.plain(tensor)
    weight = weights.merged([q4[0], q6[0], plain])
    assert isinstance(weight, NativeWeight) and len(weight.native_matrices) == 3
    return weight, torch.cat([q4[1], q6[1], tensor.double()])


@each_variant
def test_merged_weights_of_several_formats(variant: str) -> None:
    for dtype in UNITS:
        weight, matrix = mixed(factory(variant), dtype)
        assert_matmul(weight, matrix, dtype)
    ids = torch.tensor([0, 79, 40, 39, 56, 3])
    torch.testing.assert_close(weight.rows(ids).double(), matrix[ids], rtol=2e-3, atol=2e-3)


def test_a_weight_that_is_not_native_is_merged_by_torch() -> None:
    weights = factory("plain")
    weight, _ = block_weight(weights, "Q4_0", torch.float32)
    assert isinstance(weights.merged([weight, PlainWeight(torch.ones(2, COLUMNS))]), MergedWeight)


@each_variant
def test_reordered_rows_stay_in_their_matrix(variant: str) -> None:
    weight, matrix = mixed(factory(variant), torch.float32)
    borders = (0, 40, 56, 80)
    parts = [torch.randperm(end - start) + start for start, end in pairwise(borders)]
    order = torch.cat(parts)
    assert_matmul(weight.reordered(order), matrix[order], torch.float32)
    with pytest.raises(ValueError, match="between the matrices"):
        weight.reordered(torch.arange(80).flip(0))


def test_groups_that_do_not_fit_into_tiles_are_dequantized() -> None:
    ones = np.ones((16, 8), np.float32)
    matrix = Int4(np.zeros((16, 32), np.uint8), ones, ones)  # groups of 8 columns
    assert factory("plain").quantized([matrix], torch.bfloat16) is None


def test_bytes_are_known_from_the_type() -> None:
    weights = factory("plain")
    for dtype in (torch.float32, torch.bfloat16):
        for type_name in BLOCK_TYPES:
            weight, _ = block_weight(weights, type_name, dtype)
            expected = block_layout(type_name, COLUMNS).nbytes(ROWS)
            tiles = [m.tiles.nbytes for m in weight.matrices if isinstance(m, TiledMatrix)]
            assert sum(tiles) == expected == weight.nbytes


def test_rows_of_float_matrices_may_be_apart() -> None:
    tensor = torch.randn(20, 96)[:, :64]
    matrix = FloatMatrix(tensor)
    assert matrix.struct.stride == 4 * 96
    weight = factory("plain").plain(tensor)
    assert isinstance(weight, NativeWeight)
    assert_matmul(weight, tensor.double(), torch.float32)
