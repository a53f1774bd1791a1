"""linear and dequantize with rows that are padded to whole tiles."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.layout import linear_fits
from swiftchat.cuda.ops.linear.linear import LinearInput, Norm, Workspace, linear, linear_residual
from swiftchat.cuda.ops.linear.quantize import dequantize
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned
from tests.support.kernels.packed_matrices import packed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.parametrize("dtype", DTYPES),
    # 32 columns more than a stage holds, and lengths that need splits for 16 rows.
    pytest.mark.parametrize(
        ("scheme", "k", "group"),
        [
            ("INT4", 576, 32),
            ("INT4", 576, 64),
            ("INT4", 96, 32),
            ("INT4", 1504, 32),
            ("INT4", 2048 + 32, 32),
            ("INT4", 14400, 64),
            ("INT8", 96, 32),
            ("INT8", 1504, 32),
            ("INT8", 1024 + 32, 32),
            ("INT8", 14368, 32),
            ("NVFP4", 16, 16),
            ("NVFP4", 1504 + 16, 16),
            ("NVFP4", 14368, 16),
        ],
    ),
]
FP32_SUMS, INT8_PLANES = 2e-5, 2.0**-13
EPS = 1e-5


@pytest.mark.parametrize("n", [1, 3, 8, 16])
def test_padded_groups(
    gpu: Gpu, dtype: torch.dtype, scheme: str, k: int, group: int, n: int
) -> None:
    make, workspace = Inputs(k + n, dtype), Workspace(gpu, 200)
    weight, meant = packed(make, scheme, group, 200, k, magnitude=0.05)
    assert linear_fits(gpu, n, weight, splittable=True)
    x, wide = make.normal(n, k), make.normal(n, k, dtype=torch.float32)
    gain = make.normal(k)
    before = make.normal(n, 200, dtype=torch.float32)
    residual = before.clone()
    linear_residual(gpu, LinearInput(x), weight, residual, workspace)
    expected = x.double() @ meant.T
    sums = FP32_SUMS if dtype == torch.float32 or n > 1 else INT8_PLANES
    assert_close(residual - before, expected, 4 * sums)
    if not linear_fits(gpu, n, weight):
        return
    out = poisoned(n, 200, dtype=torch.float32)
    linear(gpu, LinearInput(x), weight, out, workspace)
    assert_close(out, expected, sums)
    linear(gpu, LinearInput(wide, norm=Norm(gain, EPS)), weight, out, workspace)
    factor = (wide.double().square().mean(-1, keepdim=True) + EPS).rsqrt()
    normed = (wide.double() * factor * gain.double()) @ meant.T
    rounding = 2 * ROUNDING[dtype] if dtype != torch.float32 else FP32_SUMS
    assert_close(out, normed, rounding)


def test_every_weight(gpu: Gpu, dtype: torch.dtype, scheme: str, k: int, group: int) -> None:
    matrix, expected = packed(Inputs(k, dtype), scheme, group, 70, k)
    out = poisoned(70, k, dtype=dtype)
    dequantize(gpu, matrix, out)
    assert_close(out, expected, ROUNDING[dtype])
