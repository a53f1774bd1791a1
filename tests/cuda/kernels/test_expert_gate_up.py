"""expert_gate_up against fp64: see `check_gate_up`."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.experts import expert_gate_up
from tests.support.kernels.case import Inputs
from tests.support.kernels.experts import (
    GATE_UP_SIZES,
    PLAIN_CASES,
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


@pytest.mark.parametrize("case", PLAIN_CASES)
@pytest.mark.parametrize("size", [*GATE_UP_SIZES, (3, 8, 2, 576, 97), (2, 4, 1, 4104, 33)])
def test_gate_up_equals_fp64(gpu: Gpu, case: Case, size: tuple[int, int, int, int, int]) -> None:
    check_gate_up(gpu, case, size)


@pytest.mark.parametrize("case", PLAIN_CASES)
@pytest.mark.parametrize("size", GATE_UP_SIZES)
def test_weights_of_inputs(gpu: Gpu, case: Case, size: tuple[int, int, int, int, int]) -> None:
    check_input_weights(gpu, case, size)


@pytest.mark.parametrize("case", PLAIN_CASES)
@pytest.mark.parametrize(("k", "inner"), [(72, 45), (160, 7)])
def test_biases_and_a_limit(gpu: Gpu, case: Case, k: int, inner: int) -> None:
    check_limit(gpu, case, k, inner)


def test_unsupported_shapes_raise(gpu: Gpu) -> None:
    make = Inputs(1, torch.bfloat16)
    ids, out = make.integers(0, 1, 2, 1), make.normal(2, 1, 8)
    plain = Experts(make, "PLAIN", 0, (2, 16, 32)).matrices(biased=True)
    with pytest.raises(ValueError, match="matrices must be"):
        expert_gate_up(gpu, make.normal(2, 48), plain, ids, out, "silu")
    with pytest.raises(ValueError, match="ids must be"):
        expert_gate_up(gpu, make.normal(2, 32), plain, ids[:1], out, "silu")
