"""expert_down against fp64. Tolerance: fp32 results, whose sums differ by their order."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe import expert_down
from tests.support.kernel_case import DTYPES, Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "experts", "chosen", "inner", "rows"),
    [
        (1, 16, 8, 768, 2048),
        (3, 8, 2, 1536, 97),
        (16, 12, 10, 24, 48),
        (2, 4, 1, 4104, 33),
        (4, 7, 3, 104, 576),
    ],
)
def test_down_equals_fp64(
    gpu: Gpu, dtype, n: int, experts: int, chosen: int, inner: int, rows: int
) -> None:
    make = Inputs(inner + rows, dtype)
    x = make.normal(n, chosen, inner)
    matrices = [make.normal(rows, inner, scale=inner**-0.5) for _ in range(experts)]
    addresses = torch.tensor([matrix.data_ptr() for matrix in matrices], device="cuda")
    ids = torch.stack([make.permutation(experts)[:chosen] for _ in range(n)])
    weights = make.normal(n, chosen, dtype=torch.float32).abs()
    out = poisoned(n, rows, dtype=torch.float32)
    expert_down(gpu, x, addresses, ids, weights, out)
    each = (torch.stack(matrices).double()[ids.long()] @ x.double().unsqueeze(-1))[..., 0]
    expected = (each * weights.double().unsqueeze(-1)).sum(1)
    assert_close(out, expected, 1e-5)

    biases = make.normal(experts, rows)
    places = torch.tensor([bias.data_ptr() for bias in biases], device="cuda")
    expert_down(gpu, x, addresses, ids, weights, out, places)
    each += biases.double()[ids.long()]
    assert_close(out, (each * weights.double().unsqueeze(-1)).sum(1), 1e-5)


def test_unsupported_shapes_raise(gpu: Gpu) -> None:
    make = Inputs(1, torch.bfloat16)
    ids, addresses = make.integers(0, 1, 2, 3), make.integers(0, 1, 1, dtype=torch.int64)
    weights, out = make.normal(2, 3, dtype=torch.float32), make.normal(2, 8, dtype=torch.float32)
    with pytest.raises(ValueError, match="12 elements"):
        expert_down(gpu, make.normal(2, 3, 12), addresses, ids, weights, out)
    with pytest.raises(ValueError, match="out must be"):
        expert_down(gpu, make.normal(2, 3, 16), addresses, ids, weights, out.half())
