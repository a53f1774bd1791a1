"""packed_gemm against fp64, with both ways to multiply.

Weights without groups become the activations' dtype exactly, so only the result is rounded. Those
in groups are rounded to the dtype once.
"""

from collections.abc import Iterator

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.packed_gemm import GemmWorkspace, packed_gemm
from swiftchat.cuda.packed_layout import PACKINGS
from tests.support.kernels.case import ROUNDING, Inputs, assert_close, poisoned
from tests.support.kernels.packed_matrices import packed

DTYPES = (torch.bfloat16, torch.float16)
PATHS = ("WGMMA_PATH", "MMA_PATH")
# Weight rows, columns and activation rows: few and many tiles, partial ones, many splits.
SHAPES = [
    (4096, 4096, 17),
    (97, 640, 1),
    (5000, 2176, 40),
    (64, 14336, 64),
    (8, 128, 96),
    (1026, 384, 128),
    (28672, 512, 33),
    (640, 4096, 150),
    (4096, 4096, 256),
    (1100, 1152, 300),
    (99, 2176, 700),
    (4096, 1152, 1500),
]
pytestmark = [pytest.mark.gpu, pytest.mark.parametrize("path", PATHS)]


@pytest.fixture(scope="module")
def workspace(gpu: Gpu) -> Iterator[GemmWorkspace]:
    shared = GemmWorkspace(gpu)
    shared.partial_sums.fill_(float("nan"))
    yield shared
    assert not shared.counters.any()


@pytest.fixture(autouse=True)
def _skip_without_wgmma(gpu: Gpu, path: str) -> None:
    if path == "WGMMA_PATH" and gpu.capability != (9, 0):
        pytest.skip("wgmma needs capability 9.0")


def tolerance(dtype: torch.dtype, group: int) -> float:
    return ROUNDING[dtype] * (1.5 if group else 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("scheme", "group"), PACKINGS)
@pytest.mark.parametrize(("rows", "k", "n"), SHAPES)
def test_matmul_with_bias(
    gpu: Gpu, workspace: GemmWorkspace, path: str, scheme, group, dtype, rows: int, k: int, n: int
) -> None:
    make = Inputs(rows + k + n, dtype)
    weight, meant = packed(make, scheme, group, rows, k, magnitude=0.05)
    x, bias = make.normal(n, k), make.normal(rows)
    out = poisoned(n, rows, dtype=dtype)
    packed_gemm(gpu, x, weight, out, workspace, bias=bias, path=path)
    assert_close(out, x.double() @ meant.T + bias.double(), tolerance(dtype, group))


@pytest.mark.parametrize(("scheme", "group"), PACKINGS)
def test_columns_that_do_not_fill_a_unit(
    gpu: Gpu, workspace: GemmWorkspace, path: str, scheme: str, group: int
) -> None:
    k = 3 * max(group, 64)
    make = Inputs(k, torch.bfloat16)
    weight, meant = packed(make, scheme, group, 200, k)
    x, out = make.normal(33, k), poisoned(33, 200, dtype=torch.bfloat16)
    packed_gemm(gpu, x, weight, out, workspace, path=path)
    assert_close(out, x.double() @ meant.T, tolerance(torch.bfloat16, group))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("scheme", "group"), PACKINGS)
def test_error_of_each_weight_row(
    gpu: Gpu, workspace: GemmWorkspace, path: str, scheme: str, group: int, dtype
) -> None:
    """Rows of very different sizes."""
    make = Inputs(5, dtype)
    weight, meant = packed(make, scheme, group, 300, 1280, magnitude=0.05, uneven=1000)
    x, out = make.normal(70, 1280), poisoned(70, 300, dtype=dtype)
    packed_gemm(gpu, x, weight, out, workspace, path=path)
    expected = x.double() @ meant.T
    for row in range(300):
        assert_close(out[:, row], expected[:, row], 2 * tolerance(dtype, group))


def test_activation_scales(gpu: Gpu, workspace: GemmWorkspace, path: str) -> None:
    make = Inputs(3, torch.bfloat16)
    weight, meant = packed(make, "INT8", 0, 520, 1024)
    x, scales = make.normal(77, 1024), make.normal(77, dtype=torch.float32)
    out = poisoned(77, 520, dtype=torch.bfloat16)
    packed_gemm(gpu, x, weight, out, workspace, x_scale=scales, path=path)
    expected = x.double() @ meant.T * scales.double().unsqueeze(1)
    assert_close(out, expected, ROUNDING[torch.bfloat16])


@pytest.mark.parametrize(("scheme", "group"), PACKINGS)
def test_repeatable_and_independent_of_other_rows(
    gpu: Gpu, workspace: GemmWorkspace, path: str, scheme: str, group: int
) -> None:
    make = Inputs(4, torch.bfloat16)
    weight, _ = packed(make, scheme, group, 4096, 4096)
    x = make.normal(100, 4096)
    first = poisoned(100, 4096, dtype=torch.bfloat16)
    packed_gemm(gpu, x, weight, first, workspace, path=path)
    for _ in range(20):
        again = poisoned(100, 4096, dtype=torch.bfloat16)
        packed_gemm(gpu, x, weight, again, workspace, path=path)
        assert torch.equal(again, first)
    changed = make.normal(100, 4096)
    changed[37] = x[37]
    packed_gemm(gpu, changed, weight, again, workspace, path=path)
    assert torch.equal(again[37], first[37])


def test_fp32_raises(gpu: Gpu, workspace: GemmWorkspace, path: str) -> None:
    weight, _ = packed(Inputs(1, torch.float32), "INT8", 0, 8, 64)
    x, out = torch.zeros(20, 64, device="cuda"), torch.zeros(20, 8, device="cuda")
    with pytest.raises(ValueError, match="does not multiply"):
        packed_gemm(gpu, x, weight, out, workspace, path=path)
