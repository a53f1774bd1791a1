"""A shared expert as parts of the size of the others, on a GPU: equal to fp64.

Tolerances: the activations between the matrices are rounded once.
"""

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.experts import expert_down, expert_gate_up
from swiftchat.cuda.packed_layout import PACKINGS
from swiftchat.engine.gpu.expert_matrices import expert_matrices, with_shared
from swiftchat.engine.gpu.linear.plain import GpuPlainWeight, LinearKernels
from swiftchat.engine.gpu.linear.quantized import GpuQuantizedWeight
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.moe import Expert
from tests.support.kernels.case import Inputs, assert_close, poisoned
from tests.support.kernels.packed_matrices import packed

pytestmark = pytest.mark.gpu
HIDDEN, SIZE, PARTS = 256, 128, 2


@pytest.mark.parametrize(("scheme", "group"), [("PLAIN", 0), *PACKINGS])
@pytest.mark.parametrize("n", [1, 3])
def test_parts_of_a_shared_expert_equal_it(gpu: Gpu, scheme: str, group: int, n: int) -> None:
    make, kernels = Inputs(n, torch.bfloat16), LinearKernels(gpu, 1024)

    def weight(rows: int, columns: int) -> tuple[LinearWeight, Tensor]:
        if scheme == "PLAIN":
            plain = make.normal(rows, columns, scale=columns**-0.5)
            return GpuPlainWeight(plain, kernels), plain.double()
        matrix, exact = packed(make, scheme, group, rows, columns, magnitude=columns**-0.5)
        return GpuQuantizedWeight(matrix, kernels), exact

    def expert(size: int) -> tuple[Expert, Tensor, Tensor]:
        (gate_up, first), (down, second) = weight(2 * size, HIDDEN), weight(HIDDEN, size)
        return Expert(gate_up, down), first, second

    each, shared = [expert(SIZE) for _ in range(3)], expert(PARTS * SIZE)
    experts = [one[0] for one in each]
    inputs = expert_matrices([one.gate_up for one in experts], [None] * 3)
    outputs = expert_matrices([one.down for one in experts], [None] * 3)
    assert inputs is not None and outputs is not None
    appended = with_shared(inputs, outputs, experts[0], shared[0])
    assert appended is not None
    inputs, outputs = appended
    assert inputs.num_shared == PARTS

    x = make.normal(n, HIDDEN)
    ids = torch.tensor([[2, 3, 4]] * n, dtype=torch.int32, device="cuda")  # 3 and 4 are the parts
    weights = torch.tensor([[0.5, 2.0, 2.0]] * n, device="cuda")
    inner = poisoned(n, 3, SIZE, dtype=torch.bfloat16)
    out = poisoned(n, HIDDEN, dtype=torch.float32)
    expert_gate_up(gpu, x, inputs, ids, inner, "silu")
    expert_down(gpu, inner, outputs, ids, weights, out)

    def mlp(gate_up: Tensor, down: Tensor) -> Tensor:
        gate, up = (x.double() @ gate_up.T).chunk(2, -1)
        return torch.nn.functional.silu(gate) * up @ down.T

    assert_close(out, 0.5 * mlp(*each[2][1:]) + 2 * mlp(*shared[1:]), 2.0**-8)


def test_a_shared_expert_of_another_size_or_scheme_is_refused(gpu: Gpu) -> None:
    make, kernels = Inputs(1, torch.bfloat16), LinearKernels(gpu, 1024)

    def expert(size: int) -> Expert:
        rows = make.normal(2 * size, HIDDEN), make.normal(HIDDEN, size)
        return Expert(*(GpuPlainWeight(each, kernels) for each in rows))

    one = expert(SIZE)
    inputs, outputs = expert_matrices([one.gate_up], [None]), expert_matrices([one.down], [None])
    assert inputs is not None and outputs is not None
    assert with_shared(inputs, outputs, one, expert(SIZE + 8)) is None
    matrix, _ = packed(make, "INT8", 0, HIDDEN, SIZE)
    mixed = Expert(one.gate_up, GpuQuantizedWeight(matrix, kernels))
    assert with_shared(inputs, outputs, one, mixed) is None
