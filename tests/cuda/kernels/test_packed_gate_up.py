"""packed_gate_up against fp64: see `check_gate_up`."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.experts import expert_gate_up
from tests.support.kernels.case import Inputs, assert_close, poisoned
from tests.support.kernels.experts import (
    GATE_UP_SIZES,
    PACKED_CASES,
    Case,
    Experts,
    check_gate_up,
    check_input_weights,
    check_limit,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def without_bulk_copies(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU before sm_90: otherwise bulk_gate_up would be launched."""
    monkeypatch.setattr(gpu, "has_copy_engine", False)


@pytest.mark.parametrize("case", PACKED_CASES)
@pytest.mark.parametrize("size", GATE_UP_SIZES)
def test_gate_up_equals_fp64(gpu: Gpu, case: Case, size: tuple[int, int, int, int, int]) -> None:
    check_gate_up(gpu, case, size)


@pytest.mark.parametrize("case", PACKED_CASES)
@pytest.mark.parametrize("size", GATE_UP_SIZES)
def test_weights_of_inputs(gpu: Gpu, case: Case, size: tuple[int, int, int, int, int]) -> None:
    check_input_weights(gpu, case, size)


@pytest.mark.parametrize(("k", "inner"), [(96, 40), (160, 8)])
def test_biases_and_a_limit(gpu: Gpu, k: int, inner: int) -> None:
    check_limit(gpu, ("MXFP4", 32, torch.bfloat16), k, inner)


@pytest.mark.parametrize("magnitude", [2.0**-55, 2.0**-8, 2.0])
def test_mxfp4_scales_far_from_one(gpu: Gpu, magnitude: float) -> None:
    """Sigmoids of the gates are near 0.5, or 0 or 1."""
    make = Inputs(3, torch.bfloat16)
    x, case = make.normal(2, 96), Experts(make, "MXFP4", 32, (2, 80, 96), magnitude)
    ids, out = make.integers(0, 2, 2, 1), poisoned(2, 1, 40, dtype=torch.bfloat16)
    expert_gate_up(gpu, x, case.matrices(biased=False), ids, out, "silu")
    gate, up = case.products(x.unsqueeze(1), ids, biased=False).chunk(2, -1)
    assert_close(out, torch.nn.functional.silu(gate) * up, 2.0**-8)


def test_unsupported_shapes_raise(gpu: Gpu) -> None:
    make = Inputs(1, torch.bfloat16)
    int4 = Experts(make, "INT4", 128, (2, 24, 128)).matrices(biased=False)
    ids, out = make.integers(0, 1, 2, 1), make.normal(2, 1, 12)
    with pytest.raises(ValueError, match="12 outputs"):
        expert_gate_up(gpu, make.normal(2, 128), int4, ids, out, "silu")
