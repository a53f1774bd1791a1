"""expert_gate_up against fp64. Tolerance: one rounding of the result; fp32 the order of a sum."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe import expert_gate_up
from tests.support.kernel_case import DTYPES, ROUNDING, Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(
    ("n", "experts", "chosen", "k", "inner"),
    [(1, 16, 8, 2048, 768), (3, 8, 2, 576, 97), (16, 5, 3, 48, 24), (2, 4, 1, 4104, 33)],
)
def test_gate_up_equals_fp64(
    gpu: Gpu, dtype, activation: str, n: int, experts: int, chosen: int, k: int, inner: int
) -> None:
    make = Inputs(k + inner, dtype)
    x = make.normal(n, k)
    matrices = [make.normal(2 * inner, k, scale=k**-0.5) for _ in range(experts)]
    addresses = torch.tensor([matrix.data_ptr() for matrix in matrices], device="cuda")
    ids = torch.stack([make.permutation(experts)[:chosen] for _ in range(n)])
    out = poisoned(n, chosen, inner, dtype=dtype)
    expert_gate_up(gpu, x, addresses, ids, out, activation)
    wide = torch.stack(matrices).double()[ids.long()] @ x.double()[:, None, :, None]
    gate, up = wide[..., 0].chunk(2, -1)
    act = torch.nn.functional.silu(gate)
    if activation == "gelu_tanh":
        act = torch.nn.functional.gelu(gate, approximate="tanh")
    assert_close(out, act * up, max(ROUNDING[dtype], 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate_step", [1, 2])
def test_biases_limit_and_alternating_rows(gpu: Gpu, dtype, gate_step: int) -> None:
    n, experts, chosen, k, inner = 3, 6, 4, 72, 45
    make = Inputs(gate_step, dtype)
    x = make.normal(n, k)
    matrices = make.normal(experts, 2 * inner, k, scale=2 * k**-0.5)
    biases = make.normal(experts, 2 * inner + 6)  # rows are not aligned to 16 bytes
    ids = torch.stack([make.permutation(experts)[:chosen] for _ in range(n)])
    out = poisoned(n, chosen, inner, dtype=dtype)
    expert_gate_up(
        gpu,
        x,
        addresses_of(matrices),
        ids,
        out,
        "gelu_sigmoid",
        biases=addresses_of(biases),
        gate_step=gate_step,
        limit=1.5,
    )
    wide = (matrices.double()[ids.long()] @ x.double()[:, None, :, None])[..., 0]
    wide += biases[:, : 2 * inner].double()[ids.long()]
    gate, up = (wide[..., 0::2], wide[..., 1::2]) if gate_step == 2 else wide.chunk(2, -1)
    gate, up = gate.clamp(max=1.5), up.clamp(-1.5, 1.5) + 1
    assert_close(out, gate * torch.sigmoid(1.702 * gate) * up, max(ROUNDING[dtype], 1e-5))


def addresses_of(tensors: torch.Tensor) -> torch.Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in tensors], device="cuda")


def test_unsupported_shapes_raise(gpu: Gpu) -> None:
    make = Inputs(1, torch.bfloat16)
    ids, addresses = make.integers(0, 1, 2, 1), make.integers(0, 1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="12 elements"):
        expert_gate_up(gpu, make.normal(2, 12), addresses, ids, make.normal(2, 1, 8), "silu")
    with pytest.raises(ValueError, match="ids must be"):
        expert_gate_up(gpu, make.normal(2, 16), addresses, ids[:1], make.normal(2, 1, 8), "silu")
