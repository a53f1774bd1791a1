"""mxfp4_gate_up against fp64. Tolerance: one rounding of the result to bf16."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mxfp4 import mxfp4_gate_up
from tests.support.kernel_case import Inputs, assert_close, poisoned
from tests.support.mxfp4 import RandomExperts

pytestmark = pytest.mark.gpu
SIZES = [(1, 32, 4, 2880, 2880), (3, 8, 2, 576, 97), (16, 5, 3, 64, 24), (2, 4, 1, 4128, 33)]


@pytest.mark.parametrize("gate_step", [1, 2])
@pytest.mark.parametrize(("n", "experts", "chosen", "k", "inner"), SIZES)
def test_gate_up_equals_fp64(
    gpu: Gpu, n: int, experts: int, chosen: int, k: int, inner: int, gate_step: int
) -> None:
    make = Inputs(k + inner, torch.bfloat16)
    x, case = make.normal(n, k), RandomExperts(k, experts, 2 * inner, k, (-9, -5))
    ids = torch.stack([make.permutation(experts)[:chosen] for _ in range(n)])
    out = poisoned(n, chosen, inner, dtype=torch.bfloat16)
    both = (case.matrices[ids.long()] @ x.double()[:, None, :, None])[..., 0]
    for biased, limit in ((False, 0.0), (True, 1.5)):
        packed = case.packed(biased=biased)
        mxfp4_gate_up(gpu, x, packed, ids, out, "gelu_sigmoid", gate_step=gate_step, limit=limit)
        wide = both + case.biases.double()[ids.long()] if biased else both
        gate, up = (wide[..., 0::2], wide[..., 1::2]) if gate_step == 2 else wide.chunk(2, -1)
        if limit:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit) + 1
        assert_close(out, gate * torch.sigmoid(1.702 * gate) * up, 2.0**-8)


@pytest.mark.parametrize("scales", [(-60, -50), (0, 10), (20, 30)])
def test_scales_far_from_one(gpu: Gpu, scales: tuple[int, int]) -> None:
    """Sigmoids of the gates are near 0.5, or 0 or 1."""
    make = Inputs(3, torch.bfloat16)
    x, case = make.normal(2, 96), RandomExperts(4, 2, 80, 96, scales)
    ids = make.integers(0, 2, 2, 1)
    out = poisoned(2, 1, 40, dtype=torch.bfloat16)
    mxfp4_gate_up(gpu, x, case.packed(biased=False), ids, out, "silu")
    wide = (case.matrices[ids.long()] @ x.double()[:, None, :, None])[..., 0]
    gate, up = wide.chunk(2, -1)
    assert_close(out, torch.nn.functional.silu(gate) * up, 2.0**-8)


def test_unsupported_shapes_raise(gpu: Gpu) -> None:
    make, packed = (
        Inputs(1, torch.bfloat16),
        RandomExperts(1, 2, 16, 32, (0, 1)).packed(biased=True),
    )
    ids = make.integers(0, 1, 2, 1)
    with pytest.raises(ValueError, match="48 elements"):
        mxfp4_gate_up(gpu, make.normal(2, 48), packed, ids, make.normal(2, 1, 8), "silu")
    with pytest.raises(ValueError, match="ids must be"):
        mxfp4_gate_up(gpu, make.normal(2, 32), packed, ids[:1], make.normal(2, 1, 8), "silu")
