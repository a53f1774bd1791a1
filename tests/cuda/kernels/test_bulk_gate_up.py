"""bulk_gate_up against fp64: see `check_gate_up`."""

from collections.abc import Iterator

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.bulk_gate_up import bulk_gate_up_fits
from tests.support.kernels.case import Inputs
from tests.support.kernels.experts import (
    GATE_UP_SIZES,
    PACKED_CASES,
    PLAIN_CASES,
    Case,
    Experts,
    check_gate_up,
    check_input_weights,
    check_limit,
)

pytestmark = pytest.mark.gpu
PLAIN = [case for case in PLAIN_CASES if case[2] != torch.float32]
# Rows, experts, chosen ones, columns and outputs.
PACKED_SIZES = [*GATE_UP_SIZES, (1, 12, 11, 2048, 512), (2, 4, 2, 544, 96)]
PLAIN_SIZES = [(1, 16, 8, 2048, 768), (1, 6, 4, 2880, 96), (1, 8, 2, 672, 97), (1, 4, 1, 32, 5)]
Size = tuple[int, int, int, int, int]


@pytest.fixture
def launched(gpu: Gpu) -> Iterator[None]:
    """All launches are those of the kernel."""
    if not gpu.has_copy_engine:
        pytest.skip("needs bulk copies (sm_90 or newer)")
    gpu.launches = []
    yield
    names = {launch.spec.name for launch in gpu.launches}
    gpu.launches = None
    assert names == {"bulk_gate_up"}


@pytest.mark.parametrize("case", PACKED_CASES)
@pytest.mark.parametrize("size", PACKED_SIZES)
@pytest.mark.usefixtures("launched")
def test_packed_matrices_equal_fp64(gpu: Gpu, case: Case, size: Size) -> None:
    check_gate_up(gpu, case, size)
    check_input_weights(gpu, case, size)


@pytest.mark.parametrize("case", PLAIN)
@pytest.mark.parametrize("size", PLAIN_SIZES)
@pytest.mark.usefixtures("launched")
def test_plain_matrices_equal_fp64(gpu: Gpu, case: Case, size: Size) -> None:
    check_gate_up(gpu, case, size)
    check_input_weights(gpu, case, size)


@pytest.mark.parametrize(
    ("case", "k", "inner"),
    [
        *((case, *size) for case in PLAIN for size in ((96, 45), (160, 7))),
        (("MXFP4", 32, torch.bfloat16), 160, 40),
        (("NVFP4", 16, torch.bfloat16), 144, 40),
    ],
)
@pytest.mark.usefixtures("launched")
def test_biases_and_a_limit(gpu: Gpu, case: Case, k: int, inner: int) -> None:
    check_limit(gpu, case, k, inner, n=1)


def test_which_matrices_fit(gpu: Gpu) -> None:
    make, bf16 = Inputs(1, torch.bfloat16), torch.bfloat16
    for scheme, group, columns, rows in (
        ("PLAIN", 0, 96, {1}),
        ("PLAIN", 0, 72, set()),
        ("PLAIN", 0, 8192, set()),
        ("INT4", 32, 96, {1, 2}),
        ("MXFP4", 32, 96, {1, 2}),
        ("NVFP4", 16, 80, {1, 2}),
    ):
        matrices = Experts(make, scheme, group, (1, 16, columns)).matrices(biased=False)
        found = {n for n in (1, 2) if bulk_gate_up_fits(gpu, matrices, bf16, n)}
        assert found == (rows if gpu.has_copy_engine else set())
        assert not bulk_gate_up_fits(gpu, matrices, torch.float32, 1)
