"""Matmuls of 16-bit activations, with and without fast 16-bit GEMMs, against fp64."""

from collections.abc import Iterator

import pytest
import torch

from swiftchat.engine.linear import half_gemm
from swiftchat.engine.linear.half_gemm import gemm_dtype, has_fast_gemm, linear
from swiftchat.engine.linear.plain import PlainWeight

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


def test_a_plain_weight_of_many_rows(is_fast: bool) -> None:
    for dtype in DTYPES:
        weight, x = torch.randn(70, 48).to(dtype), torch.randn(40, 48).to(dtype)
        exact = x.double() @ weight.double().T
        sizes = x.double().abs() @ weight.double().abs().T
        found = PlainWeight(weight).matmul(x)
        # Torch may sum in blocks of the 16-bit dtype.
        assert ((found.double() - exact).abs() <= 2 * HALF_ULP[dtype] * sizes).all()
