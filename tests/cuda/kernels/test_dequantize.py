"""dequantize against the exact weights, rounded once."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.quantize import dequantize
from swiftchat.cuda.packed_layout import PACKINGS
from tests.support.kernels.case import DTYPES, Inputs, poisoned
from tests.support.kernels.packed_matrices import packed

pytestmark = pytest.mark.gpu
# Half a unit in the last place; the fp32 product is rounded before.
ULPS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-23}
TWICE = 1 + 2.0**-12


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("scheme", "group"), PACKINGS)
@pytest.mark.parametrize(("rows", "k"), [(64, 4096), (97, 640), (1, 128), (9000, 1152)])
def test_every_weight(gpu: Gpu, dtype, scheme: str, group: int, rows: int, k: int) -> None:
    matrix, expected = packed(Inputs(rows + k, dtype), scheme, group, rows, k, uneven=1000)
    out = poisoned(rows, k, dtype=dtype)
    dequantize(gpu, matrix, out)
    error = (out.double() - expected).abs()
    least = torch.finfo(dtype).tiny  # subnormal numbers have a constant spacing
    assert (error <= TWICE * ULPS[dtype] * expected.abs().clamp_min(least)).all()
    if dtype != torch.float32 and scheme != "INT4":
        assert torch.equal(out, expected.float().to(dtype))


@pytest.mark.parametrize(("scheme", "group"), PACKINGS)
def test_row_slice(gpu: Gpu, scheme: str, group: int) -> None:
    matrix, _ = packed(Inputs(1, torch.bfloat16), scheme, group, 100, 512)
    whole, part = (poisoned(rows, 512, dtype=torch.bfloat16) for rows in (100, 27))
    dequantize(gpu, matrix, whole)
    dequantize(gpu, matrix.rows(56, 83), part)
    assert torch.equal(part, whole[56:83])


def test_wrong_output_shape_raises(gpu: Gpu) -> None:
    matrix, _ = packed(Inputs(1, torch.bfloat16), "INT8", 0, 8, 64)
    with pytest.raises(ValueError, match="out must be"):
        dequantize(gpu, matrix, poisoned(8, 32, dtype=torch.bfloat16))
