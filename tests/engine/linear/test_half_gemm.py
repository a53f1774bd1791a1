"""Matmuls of 16-bit activations, with and without fast 16-bit GEMMs, against fp64."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from swiftchat.engine.linear import half_gemm
from swiftchat.engine.linear.factory import TorchWeights
from swiftchat.engine.linear.half_gemm import gemm_dtype, has_fast_gemm, linear, matmul_tiles
from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.weights.quantization.scheme import Float8, Int4, Int8, Int8Groups, QuantizedMatrix

# Half a unit in the last place: the result, of sums in fp32, is rounded once.
HALF_ULP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
DTYPES = list(HALF_ULP)


def set_fast(monkeypatch: pytest.MonkeyPatch, is_fast: bool) -> None:
    monkeypatch.setattr(half_gemm, "has_onednn_gemm", lambda dtype: is_fast)
    has_fast_gemm.cache_clear()


@pytest.fixture(params=[False, True], ids=["slow", "fast"])
def is_fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether the processor is taken for one with fast 16-bit GEMMs."""
    set_fast(monkeypatch, request.param)
    yield request.param
    has_fast_gemm.cache_clear()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    set_fast(monkeypatch, False)
    yield
    has_fast_gemm.cache_clear()


def test_the_dtype_of_matmuls(is_fast: bool) -> None:
    for dtype in DTYPES:
        assert has_fast_gemm(dtype) == is_fast
        expected = dtype if is_fast else torch.float32
        assert gemm_dtype(torch.zeros(1, dtype=dtype)) == expected
        assert gemm_dtype(torch.zeros(1, dtype=dtype, device="meta")) == dtype
    assert gemm_dtype(torch.zeros(1)) == torch.float32


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, columns", [(1, 7), (70, 33), (130, 8200), (900, 576)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_linear_rounds_sums_in_fp32_once(
    dtype: torch.dtype, rows: int, columns: int, is_transposed: bool
) -> None:
    torch.manual_seed(rows)
    weight = torch.randn(rows, columns).to(dtype)
    if is_transposed:
        weight = weight.t().contiguous().t()
    bias = torch.randn(rows).to(dtype)
    for n in (1, 2, 15, 16, 33):
        x = torch.randn(n, columns).to(dtype)
        for b in (None, bias):
            terms = 0.0 if b is None else b.double()
            exact = x.double() @ weight.double().T + terms
            sizes = x.double().abs() @ weight.double().abs().T + abs(terms)
            found = linear(x, weight, b)
            assert found.dtype == dtype and found.shape == (n, rows)
            bound = HALF_ULP[dtype] * exact.abs() + columns * 2.0**-24 * sizes + 2.0**-25
            if n < 16 and not is_transposed:
                bound += sizes * HALF_ULP[dtype]  # torch's own operator
            assert ((found.double() - exact).abs() <= bound).all(), (n, b is None)


@pytest.mark.parametrize("num_rows, per_tile", [(64, 64), (100, 64), (1, 64), (130, 7)])
def test_tiles_join_to_the_scaled_matrix(is_fast: bool, num_rows: int, per_tile: int) -> None:
    """Small integers, whose sums every dtype represents: the results are exact."""
    torch.manual_seed(num_rows)
    matrix = torch.randint(-2, 3, (num_rows, 9), dtype=torch.int8)
    scale, bias = 2.0 ** torch.randint(-2, 3, (num_rows,)), torch.randint(-4, 5, (num_rows,))
    for dtype in (*DTYPES, torch.float32):
        for n in (1, 5):
            x = torch.randint(-2, 3, (n, 9)).to(dtype)
            found = matmul_tiles(x, num_rows, per_tile, lambda rows: matrix[rows], scale, bias)
            exact = x.double() @ matrix.double().T * scale + bias
            assert found.dtype == dtype and torch.equal(found.double(), exact)


def quantized(rows: int, columns: int) -> list[tuple[QuantizedMatrix, torch.Tensor]]:
    """A random matrix of each quantization scheme, with its values in fp64.

    Scales are powers of two, so that every dtype represents the dequantized values.
    """
    rng = np.random.default_rng(rows)
    groups = columns // 32
    scale = 2.0 ** rng.integers(-9, -5, (rows, groups)).astype(np.float32)
    zero = rng.integers(0, 16, (rows, groups)).astype(np.float32)
    int4 = rng.integers(0, 16, (rows, columns))
    int8 = rng.integers(-127, 128, (rows, columns)).astype(np.int8)
    packed = (int4[:, 0::2] | int4[:, 1::2] << 4).astype(np.uint8)
    fp8 = torch.from_numpy(rng.normal(size=(rows, columns))).to(torch.float8_e4m3fn)
    by_group, by_row = scale.repeat(32, 1), scale[:, :1]
    values = [(int4 - zero.repeat(32, 1)) * by_group, int8 * by_row, int8 * by_group]
    exact = [*map(torch.from_numpy, values), fp8.double() * torch.from_numpy(by_row)]
    shifted = (int8.astype(np.int16) + 128).astype(np.uint8)
    matrices: list[QuantizedMatrix] = [
        Int4(packed, scale, zero),
        Int8(int8, by_row[:, 0]),
        Int8Groups(shifted, scale, np.full_like(scale, 128)),
        Float8(fp8.view(torch.uint8).numpy(), by_row[:, 0]),
    ]
    return [(matrix, value.double()) for matrix, value in zip(matrices, exact, strict=True)]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, columns", [(64, 64), (200, 96), (1000, 608)])
def test_quantized_weights_round_once(dtype: torch.dtype, rows: int, columns: int) -> None:
    weights = TorchWeights(keeps_quantized=True)
    bias = torch.randn(rows, dtype=dtype)
    for matrix, values in quantized(rows, columns):
        weight = weights.quantized([matrix], dtype)
        if weight is None:
            assert isinstance(matrix, (Int4, Int8Groups))
            continue  # torch has no operator for it on this processor: it is dequantized
        x = torch.randn(100, columns).to(dtype)
        exact = x.double() @ values.T + bias.double()
        sizes = x.double().abs() @ values.abs().T + bias.double().abs()
        bound = HALF_ULP[dtype] * exact.abs() + columns * 2.0**-24 * sizes + 2.0**-25
        found = weight.matmul(x, bias)
        assert found.dtype == dtype
        assert ((found.double() - exact).abs() <= bound).all(), type(weight)


def test_a_plain_weight_of_many_rows(is_fast: bool) -> None:
    for dtype in DTYPES:
        weight, x = torch.randn(70, 48).to(dtype), torch.randn(40, 48).to(dtype)
        exact = x.double() @ weight.double().T
        sizes = x.double().abs() @ weight.double().abs().T
        found = PlainWeight(weight).matmul(x)
        # Torch may sum in blocks of the 16-bit dtype.
        assert ((found.double() - exact).abs() <= 2 * HALF_ULP[dtype] * sizes).all()
