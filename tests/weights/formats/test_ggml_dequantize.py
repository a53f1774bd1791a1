"""Dequantized blocks equal those of the reference package bit for bit."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from swiftchat.weights.formats.ggml_dequantize import BLOCK_TYPES, dequantize, has_finite_scales
from swiftchat.weights.formats.ggml_grids import grid
from swiftchat.weights.formats.gguf import GgufFile

ROWS = 4096  # that are compared of a tensor of a real model


def reference(data: np.ndarray, type_name: str) -> np.ndarray:
    plain = {"F32": np.float32, "F16": np.float16}.get(type_name)
    if type_name == "Q8_K":  # the package has its size only: float d, int8 q[256], 16 int16 sums
        d, q = data.reshape(-1, 292)[:, :4], data.reshape(-1, 292)[:, 4:260]
        numbers = torch.from_numpy(q.view(np.int8).copy()).float()
        factors = torch.from_numpy(d.copy().view(np.float32))
        return (numbers * factors).numpy().reshape(len(data), -1)
    if type_name == "Q1_0":  # half d, then a bit for each of 128 values, the lowest first
        blocks = torch.from_numpy(data).reshape(-1, 18)
        bits = blocks[:, 2:, None] >> torch.arange(8) & 1
        d = blocks[:, :2].contiguous().view(torch.float16).float()
        return torch.where(bits.flatten(1) == 1, d, -d).numpy().reshape(len(data), -1)
    with np.errstate(all="ignore"):
        typed = data.view(plain) if plain else data
        return gguf.dequantize(typed, gguf.GGMLQuantizationType[type_name])


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    numbers = ~np.isnan(theirs)
    assert np.array_equal(np.isnan(ours), ~numbers)
    assert np.array_equal(ours[numbers].view(np.uint32), theirs[numbers].view(np.uint32))


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_random_bytes(type_name: str) -> None:
    kind = BLOCK_TYPES[type_name]
    row_bytes = kind.block_bytes * (64 if kind.block_elements == 1 else 4)
    data = np.random.default_rng(0).integers(0, 256, (300, row_bytes), dtype=np.uint8)
    assert_same_bits(dequantize(data, type_name), reference(data, type_name))


@pytest.mark.parametrize("name", ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_grids_are_those_of_the_reference(name: str) -> None:
    theirs = getattr(gguf.quants, name)
    theirs.init_grid()
    ours = grid("IQ1" if name == "IQ1_S" else name)
    assert np.array_equal(np.array(theirs.grid_map)[ours], theirs.grid.reshape(theirs.grid_shape))


def test_every_type_of_weights_is_read() -> None:
    """Q8_1 is for activations; integers and float64 are no weights of a model."""
    others = {"Q8_1", "I8", "I16", "I32", "I64", "F64"}
    assert {kind.name for kind in gguf.GGMLQuantizationType} == BLOCK_TYPES.keys() | others


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_finite_scales_make_finite_weights(type_name: str) -> None:
    kind = BLOCK_TYPES[type_name]
    blocks = np.random.default_rng(3).integers(0, 256, (2000, kind.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        is_finite = np.isfinite(reference(blocks, type_name)).all(axis=1)
    assert [has_finite_scales(block[None], type_name) for block in blocks] == is_finite.tolist()


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_block_sizes_match_the_reference(type_name: str) -> None:
    kind = BLOCK_TYPES[type_name]
    sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    assert (kind.block_elements, kind.block_bytes) == sizes


@pytest.mark.parametrize(
    "type_name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
)
def test_dequantizing_approximates_the_original(type_name: str) -> None:
    numbers = np.random.default_rng(1).standard_normal((40, 256)).astype(np.float32)
    data = gguf.quantize(numbers, gguf.GGMLQuantizationType[type_name]).view(np.uint8)
    ours = dequantize(data.reshape(40, -1), type_name)
    assert_same_bits(ours, reference(data.reshape(40, -1), type_name))
    # Q4_0 is the coarsest: eight steps up to the largest value, and it clips one end.
    assert np.abs(ours - numbers).max() <= np.abs(numbers).max() / 8


def test_real_model(smollm2_gguf: Path) -> None:
    file = GgufFile.open(smollm2_gguf)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2_gguf).tensors}
    assert set(theirs) == set(file.tensors)
    # The layers are alike: one tensor of each type and shape, and not all of the vocabulary.
    kinds = {(tensor.type_name, tensor.shape): name for name, tensor in file.tensors.items()}
    for name in kinds.values():
        tensor = file.tensors[name]
        expected = gguf.dequantize(theirs[name].data[:ROWS], theirs[name].tensor_type)
        rows = dequantize(file.rows(tensor)[:ROWS], tensor.type_name)
        assert_same_bits(rows.reshape(expected.shape), expected)
