"""mxfp4_down against fp64. Tolerance: fp32 results, whose sums differ by their order."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mxfp4 import mxfp4_down
from tests.support.kernel_case import Inputs, assert_close, poisoned
from tests.support.mxfp4 import RandomExperts

pytestmark = pytest.mark.gpu
SIZES = [
    (1, 32, 4, 2880, 2880),
    (3, 8, 2, 1536, 97),
    (16, 24, 20, 32, 48),
    (2, 4, 1, 4128, 33),
    (4, 7, 3, 96, 576),
]


@pytest.mark.parametrize(("n", "experts", "chosen", "inner", "rows"), SIZES)
def test_down_equals_fp64(
    gpu: Gpu, n: int, experts: int, chosen: int, inner: int, rows: int
) -> None:
    make = Inputs(inner + rows, torch.bfloat16)
    x, case = make.normal(n, chosen, inner), RandomExperts(rows, experts, rows, inner, (-9, -5))
    ids = torch.stack([make.permutation(experts)[:chosen] for _ in range(n)])
    weights = make.normal(n, chosen, dtype=torch.float32).abs()
    each = (case.matrices[ids.long()] @ x.double().unsqueeze(-1))[..., 0]
    for biased in (False, True):
        out = poisoned(n, rows, dtype=torch.float32)
        mxfp4_down(gpu, x, case.packed(biased=biased), ids, weights, out)
        whole = each + case.biases.double()[ids.long()] if biased else each
        assert_close(out, (whole * weights.double().unsqueeze(-1)).sum(1), 1e-5)


def test_unsupported_shapes_raise(gpu: Gpu) -> None:
    make, packed = Inputs(1, torch.bfloat16), RandomExperts(1, 2, 8, 32, (0, 1)).packed(biased=True)
    ids, weights = make.integers(0, 1, 2, 3), make.normal(2, 3, dtype=torch.float32)
    out = make.normal(2, 8, dtype=torch.float32)
    with pytest.raises(ValueError, match="48 elements"):
        mxfp4_down(gpu, make.normal(2, 3, 48), packed, ids, weights, out)
    with pytest.raises(ValueError, match="out must be"):
        mxfp4_down(gpu, make.normal(2, 3, 32), packed, ids, weights, out.half())
