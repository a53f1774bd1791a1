"""scale_gemm_output against fp64."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.quantize import scale_gemm_output
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "width", "first", "rows"),
    [
        (1, 4, 0, 4),
        (65, 1024, 0, 1024),
        (300, 520, 1032, 1552),
        (4096, 48, 8, 104),
    ],
)
def test_every_column(gpu: Gpu, dtype, n: int, width: int, first: int, rows: int) -> None:
    make = Inputs(n + width, dtype)
    products = make.integers(-(2**22), 2**22, n, width)
    x_scale = make.normal(n, dtype=torch.float32) * 1e-4
    row_scale = make.normal(rows, dtype=torch.float32) * 1e-3
    bias = make.normal(rows)
    for added in (None, bias):
        out = poisoned(n, rows, dtype=dtype)
        scale_gemm_output(gpu, products, x_scale, row_scale, out, first, bias=added)
        own = slice(first, first + width)
        expected = products.double() * x_scale.double().unsqueeze(1) * row_scale.double()[own]
        if added is not None:
            expected += added.double()[own]
        assert_close(out[:, own], expected, ROUNDING[dtype])
        assert out[:, :first].isnan().all() and out[:, first + width :].isnan().all()


def test_columns_outside_the_output_raise(gpu: Gpu) -> None:
    make = Inputs(1, torch.bfloat16)
    products, x_scale = make.integers(0, 9, 4, 16), make.normal(4, dtype=torch.float32)
    scale, out = make.normal(32, dtype=torch.float32), make.normal(4, 32)
    for first in (2, 20):
        with pytest.raises(ValueError, match="do not fit"):
            scale_gemm_output(gpu, products, x_scale, scale, out, first)
