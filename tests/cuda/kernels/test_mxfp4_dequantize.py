"""mxfp4_dequantize against fp64: exact in bf16 and fp32."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.mxfp4 import mxfp4_dequantize
from tests.support.kernels.case import DTYPES, poisoned
from tests.support.kernels.experts import RandomExperts

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (97, 96), (2880, 2880)])
def test_dequantize_is_exact(gpu: Gpu, dtype: torch.dtype, rows: int, columns: int) -> None:
    case = RandomExperts(rows, 1, rows, columns, (-10, 10))
    out = poisoned(rows, columns, dtype=dtype)
    mxfp4_dequantize(gpu, case.blocks[0], case.scales[0], out)
    assert torch.equal(out, case.matrices[0].to(dtype))


def test_extreme_scales(gpu: Gpu) -> None:
    case = RandomExperts(5, 1, 3, 64, (0, 0))
    case.blocks[:] = 0x22  # ones
    case.scales[0, 0, 0], case.scales[0, 1, 0], case.scales[0, 2, 0] = 0, 254, 255
    out = poisoned(3, 64, dtype=torch.float32)
    mxfp4_dequantize(gpu, case.blocks[0], case.scales[0], out)
    assert out[0, 0] == 2.0**-127 and out[1, 0] == 2.0**127 and out[2, 0].isnan()


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    case = RandomExperts(1, 1, 4, 64, (0, 1))
    with pytest.raises(ValueError, match="out must be"):
        mxfp4_dequantize(gpu, case.blocks[0], case.scales[0], torch.zeros(4, 32, device="cuda"))
