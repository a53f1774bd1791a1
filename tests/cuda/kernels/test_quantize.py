"""quantize against the same in torch, in fp32: codes equal to the bit, by the factors found.

Torch divides by a constant as if it were a multiplication, so factors may be a bit or two apart.
"""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.quantize import quantize
from swiftchat.engine.linear.activations import LARGEST
from tests.support.kernel_case import DTYPES, Inputs, poisoned

pytestmark = pytest.mark.gpu
CODES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", CODES)
@pytest.mark.parametrize(("n", "k"), [(1, 8), (3, 576), (130, 4096), (5, 14336), (2, 16400)])
@pytest.mark.parametrize("given", [None, 0.03])
def test_codes_and_factors(gpu: Gpu, dtype, form: str, n: int, k: int, given) -> None:
    x = Inputs(n + k, dtype).normal(n, k)
    x[0, k // 2] *= 100
    x[-1, :] *= 0.001
    if n > 2:
        x[1] = 0
    largest = x.float().abs().amax(1).clamp(min=2.0**-90)
    factors = largest / LARGEST[form] if given is None else torch.full_like(largest, given)
    clipped = (-128, 127) if form == "int8" else (-448, 448)
    for kind in (CODES[form], dtype):
        codes = torch.zeros(n, k, dtype=kind, device="cuda")
        found = poisoned(n, dtype=torch.float32)
        quantize(gpu, x, codes, found, form, fixed_scale=given)
        if n > 2 and given is None:
            assert found[1] == 2.0**-100 and not codes[1].float().any()
            found[1] = factors[1]
        torch.testing.assert_close(found, factors, rtol=2.0**-22, atol=0)
        scaled = (x.float() / found.unsqueeze(1)).clamp(*clipped)
        expected = scaled.round() if form == "int8" else scaled.to(torch.float8_e4m3fn)
        assert torch.equal(codes.float(), expected.float())


@pytest.mark.parametrize("form", CODES)
@pytest.mark.parametrize("k", [64, 20000])
def test_what_is_not_finite_stays_seen(gpu: Gpu, form: str, k: int) -> None:
    x = Inputs(1, torch.bfloat16).normal(4, k)
    x[1, k - 1], x[2, 3] = float("nan"), float("-inf")
    codes, factors = torch.empty_like(x), poisoned(4, dtype=torch.float32)
    quantize(gpu, x, codes, factors, form)
    assert factors.isfinite().tolist() == [True, False, False, True]


def test_what_does_not_fit_is_refused(gpu: Gpu) -> None:
    x, factors = Inputs(1, torch.bfloat16).normal(2, 12), poisoned(2, dtype=torch.float32)
    with pytest.raises(ValueError, match="12 elements"):
        quantize(gpu, x, torch.empty_like(x), factors, "int8")
    x = x.new_zeros(2, 16)
    for form, codes, given in (
        ("int4", x, None),
        ("int8", x.to(torch.uint8), None),
        ("int8", torch.empty_like(x), 0.0),
    ):
        with pytest.raises(ValueError, match=r"int4|values must be|above 0"):
            quantize(gpu, x, codes, factors, form, fixed_scale=given)
