"""dequantize against the numbers that packed matrices stand for, rounded once."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.quantize import dequantize
from tests.support.kernel_case import DTYPES, Inputs, poisoned
from tests.support.packed_matrices import FORMS, packed

pytestmark = pytest.mark.gpu
# Half a unit in the last place, and what the product in fp32 was rounded by before.
ULPS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-23}
TWICE = 1 + 2.0**-12


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("form", "group"), FORMS)
@pytest.mark.parametrize(("rows", "k"), [(64, 4096), (97, 640), (1, 128), (9000, 1152)])
def test_every_weight(gpu: Gpu, dtype, form: str, group: int, rows: int, k: int) -> None:
    matrix, expected = packed(Inputs(rows + k, dtype), form, group, rows, k, uneven=1000)
    out = poisoned(rows, k, dtype=dtype)
    dequantize(gpu, matrix, out)
    error = (out.double() - expected).abs()
    least = torch.finfo(dtype).tiny  # below, steps do not get smaller
    assert (error <= TWICE * ULPS[dtype] * expected.abs().clamp_min(least)).all()
    if dtype != torch.float32 and form != "INT4":
        assert torch.equal(out, expected.float().to(dtype))


@pytest.mark.parametrize(("form", "group"), FORMS)
def test_some_rows(gpu: Gpu, form: str, group: int) -> None:
    matrix, _ = packed(Inputs(1, torch.bfloat16), form, group, 100, 512)
    whole, part = (poisoned(rows, 512, dtype=torch.bfloat16) for rows in (100, 27))
    dequantize(gpu, matrix, whole)
    dequantize(gpu, matrix.rows(56, 83), part)
    assert torch.equal(part, whole[56:83])


def test_another_shape_is_refused(gpu: Gpu) -> None:
    matrix, _ = packed(Inputs(1, torch.bfloat16), "INT8", 0, 8, 64)
    with pytest.raises(ValueError, match="out must be"):
        dequantize(gpu, matrix, poisoned(8, 32, dtype=torch.bfloat16))
