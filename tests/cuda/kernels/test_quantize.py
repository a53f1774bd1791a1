"""quantize against torch in fp32: the values are equal for the scales that the kernel found.

Torch divides by a constant by multiplication, so the scales may differ in the last two bits.
"""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.quantize import quantize
from swiftchat.engine.linear.activations import LARGEST
from tests.support.kernels.case import DTYPES, Inputs, poisoned

pytestmark = pytest.mark.gpu
VALUE_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", VALUE_DTYPES)
@pytest.mark.parametrize(("n", "k"), [(1, 8), (3, 576), (130, 4096), (5, 14336), (2, 16400)])
@pytest.mark.parametrize("fixed", [None, 0.03])
def test_values_and_scales(gpu: Gpu, dtype, scheme: str, n: int, k: int, fixed) -> None:
    x = Inputs(n + k, dtype).normal(n, k)
    x[0, k // 2] *= 100
    x[-1, :] *= 0.001
    if n > 2:
        x[1] = 0
    largest = x.float().abs().amax(1).clamp(min=2.0**-90)
    scales = largest / LARGEST[scheme] if fixed is None else torch.full_like(largest, fixed)
    clipped = (-128, 127) if scheme == "int8" else (-448, 448)
    for kind in (VALUE_DTYPES[scheme], dtype):
        values = torch.zeros(n, k, dtype=kind, device="cuda")
        found = poisoned(n, dtype=torch.float32)
        quantize(gpu, x, values, found, scheme, fixed_scale=fixed)
        if n > 2 and fixed is None:
            assert found[1] == 2.0**-100 and not values[1].float().any()
            found[1] = scales[1]
        torch.testing.assert_close(found, scales, rtol=2.0**-22, atol=0)
        scaled = (x.float() / found.unsqueeze(1)).clamp(*clipped)
        expected = scaled.round() if scheme == "int8" else scaled.to(torch.float8_e4m3fn)
        assert torch.equal(values.float(), expected.float())


@pytest.mark.parametrize("scheme", VALUE_DTYPES)
@pytest.mark.parametrize("k", [64, 20000])
def test_scale_of_a_row_with_nan_or_infinity_is_not_finite(gpu: Gpu, scheme: str, k: int) -> None:
    x = Inputs(1, torch.bfloat16).normal(4, k)
    x[1, k - 1], x[2, 3] = float("nan"), float("-inf")
    values, scales = torch.empty_like(x), poisoned(4, dtype=torch.float32)
    quantize(gpu, x, values, scales, scheme)
    assert scales.isfinite().tolist() == [True, False, False, True]


def test_unsupported_shapes_raise(gpu: Gpu) -> None:
    x, scales = Inputs(1, torch.bfloat16).normal(2, 12), poisoned(2, dtype=torch.float32)
    with pytest.raises(ValueError, match="12 elements"):
        quantize(gpu, x, torch.empty_like(x), scales, "int8")
    x = x.new_zeros(2, 16)
    for scheme, values, fixed in (
        ("int4", x, None),
        ("int8", x.to(torch.uint8), None),
        ("int8", torch.empty_like(x), 0.0),
    ):
        with pytest.raises(ValueError, match=r"int4|values must be|above 0"):
            quantize(gpu, x, values, scales, scheme, fixed_scale=fixed)
