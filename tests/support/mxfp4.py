"""Random MXFP4 experts for kernel tests."""

import torch
from torch import Tensor

from swiftchat.cuda.ops.mxfp4 import PackedExperts
from tests.support.kernel_case import Inputs

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class RandomExperts:
    """Matrices [num_experts, rows, columns] and biases, packed and in fp64.

    `scales` are the exponents of the least and greatest scale.
    """

    def __init__(
        self, seed: int, num_experts: int, rows: int, columns: int, scales: tuple[int, int]
    ) -> None:
        make, groups = Inputs(seed, torch.bfloat16), columns // 32
        shape = (num_experts, rows, groups)
        self.blocks = make.integers(0, 256, *shape, 16).to(torch.uint8)
        low, high = scales
        self.scales = make.integers(127 + low, 128 + high, *shape).to(torch.uint8)
        self.biases = make.normal(num_experts, rows)
        table = torch.tensor([*_E2M1, *(-x for x in _E2M1)], dtype=torch.float64, device="cuda")
        nibbles = torch.stack([self.blocks & 15, self.blocks >> 4], -1).flatten(-2)
        exact = table[nibbles.long()] * 2.0 ** (self.scales.double() - 127).unsqueeze(-1)
        self.matrices = exact.view(num_experts, rows, columns)

    def packed(self, *, biased: bool) -> PackedExperts:
        biases = addresses(self.biases) if biased else None
        return PackedExperts(addresses(self.blocks), addresses(self.scales), biases)


def addresses(tensors: Tensor) -> Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in tensors], device="cuda")
