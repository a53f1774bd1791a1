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
    check_limit_and_order,
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


@pytest.mark.parametrize("gate_step", [1, 2])
@pytest.mark.parametrize(("k", "inner"), [(96, 45), (160, 7)])
def test_biases_limit_and_alternating_rows(gpu: Gpu, gate_step: int, k: int, inner: int) -> None:
    check_limit_and_order(gpu, ("MXFP4", 0, torch.bfloat16), gate_step, k, inner)


@pytest.mark.parametrize("scales", [(-60, -50), (0, 10), (20, 30)])
def test_mxfp4_scales_far_from_one(gpu: Gpu, scales: tuple[int, int]) -> None:
    """Sigmoids of the gates are near 0.5, or 0 or 1."""
    make = Inputs(3, torch.bfloat16)
    x, case = make.normal(2, 96), Experts(make, "MXFP4", 0, (2, 80, 96), scales)
    ids, out = make.integers(0, 2, 2, 1), poisoned(2, 1, 40, dtype=torch.bfloat16)
    expert_gate_up(gpu, x, case.matrices(biased=False), ids, out, "silu")
    gate, up = case.products(x.unsqueeze(1), ids, biased=False).chunk(2, -1)
    assert_close(out, torch.nn.functional.silu(gate) * up, 2.0**-8)


def test_unsupported_shapes_raise(gpu: Gpu) -> None:
    make = Inputs(1, torch.bfloat16)
    int4 = Experts(make, "INT4", 128, (2, 16, 128)).matrices(biased=False)
    ids, out = make.integers(0, 1, 2, 1), make.normal(2, 1, 8)
    with pytest.raises(ValueError, match="gate_step 2"):
        expert_gate_up(gpu, make.normal(2, 128), int4, ids, out, "silu", gate_step=2)
