"""Activations as 16-bit integers, against numpy."""

import ctypes
from ctypes import c_void_p

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.support.cases import each_case
from tests.support.native.activations import QuantizedRows
from tests.support.native.guarded import before_guard_page
from tests.support.native.libraries import load
from tests.support.native.ops import aligned, each_variant

LARGEST = 32512


def quantize(variant: str, x: Tensor) -> dict[str, np.ndarray]:
    """Quantize x fp32 [n, cols]: arrays [n, blocks] and [n, blocks, 32]."""
    library = load(variant)
    num_rows, cols = x.shape
    library.quantized_rows_bytes.restype = ctypes.c_size_t
    library.place_quantized_rows.restype = QuantizedRows
    library.quantize_row.restype = None
    nbytes = library.quantized_rows_bytes(num_rows, cols)
    memory = before_guard_page(torch.full((nbytes,), 99, dtype=torch.uint8))
    assert memory.data_ptr() % 64 == 0
    rows = library.place_quantized_rows(c_void_p(memory.data_ptr()), num_rows, cols)
    for row in range(num_rows):
        one = before_guard_page(x[row])
        library.quantize_row(c_void_p(one.data_ptr()), cols, ctypes.byref(rows), row)
    blocks = -(-cols // 32)
    arrays = {}
    for name, dtype, block in (
        ("whole", np.int16, 32),
        ("high", np.int8, 32),
        ("low", np.int8, 32),
        ("scale", np.float32, 1),
        ("sum", np.int32, 1),
        ("half_sum", np.int32, 1),
    ):
        offset = getattr(rows, name) - memory.data_ptr()
        count = num_rows * rows.blocks * block
        numbers = np.frombuffer(memory.numpy(), dtype, count, offset)
        arrays[name] = numbers.reshape(num_rows, rows.blocks, block)[:, :blocks].squeeze()
    return arrays


def reference(x: Tensor) -> dict[str, np.ndarray]:
    """The same by numpy, in fp32, for finite blocks that are not zero."""
    values = x.numpy()
    values = np.pad(values, ((0, 0), (0, -values.shape[1] % 32))).reshape(len(values), -1, 32)
    largest = np.abs(values).max(2)
    factor = np.float32(LARGEST) / largest
    whole = np.rint(values * factor[:, :, None]).astype(np.int32)
    high = (whole + 128) >> 8
    return {
        "whole": whole,
        "high": high,
        "low": whole - 256 * high,
        "scale": largest / np.float32(LARGEST),
        "sum": whole.sum(2),
        "half_sum": whole[:, :, :16].sum(2),
    }


@each_variant
@settings(max_examples=30, deadline=None)
@given(
    num_rows=st.integers(1, 4),
    cols=st.integers(1, 2100),
    exponent=st.integers(-90, 110),
    seed=st.integers(0, 1000),
)
def test_bits(variant: str, num_rows: int, cols: int, exponent: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(num_rows, cols, generator=generator) + 0.01) * 2.0**exponent
    found, expected = quantize(variant, x), reference(x)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array.squeeze(), err_msg=name)


@each_variant
def test_error_is_half_a_step(variant: str) -> None:
    x = torch.randn(3, 640, generator=torch.Generator().manual_seed(1))
    found = quantize(variant, x)
    scale = found["scale"].astype(np.float64)[:, :, None]
    error = np.abs(found["whole"] * scale - x.double().numpy().reshape(3, 20, 32))
    # Half a step, and roundings of the scale, of its inverse and of the quotient.
    assert (error <= scale * (0.5 + 3 * LARGEST * 2**-24)).all()
    assert np.abs(found["whole"]).max() == LARGEST


@each_variant
@each_case("value", [torch.nan, torch.inf, -torch.inf])
def test_block_that_is_not_finite(variant: str, value: float) -> None:
    x = torch.ones(1, 96)
    x[0, 40] = value
    found = quantize(variant, x)
    np.testing.assert_array_equal(np.isnan(found["scale"]), [False, True, False])
    assert not found["whole"][1].any() and found["sum"][1] == 0


@each_variant
def test_zeros_and_tiny_blocks_are_zero(variant: str) -> None:
    x = torch.zeros(1, 96)
    x[0, 40], x[0, 41] = 2.0**-101, -1e-45
    x[0, 70] = 2.0**-100
    found = quantize(variant, x)
    np.testing.assert_array_equal(found["scale"][:2], [0.0, 0.0])
    assert found["scale"][2] == np.float32(2.0**-100) / np.float32(LARGEST)
    assert not found["whole"][:2].any() and found["whole"][2].sum() == LARGEST


@each_variant
def test_rows_do_not_overlap(variant: str) -> None:
    x = torch.randn(5, 1024, generator=torch.Generator().manual_seed(2))
    together = quantize(variant, x)
    for row in range(5):
        alone = quantize(variant, aligned(x[row : row + 1]))
        for name, array in alone.items():
            np.testing.assert_array_equal(together[name][row], array)
