"""The classes of weights that the kernels of a GPU compute with."""

from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.engine.gpu.linear.plain import GpuMergedWeight, GpuPlainWeight, LinearKernels
from swiftchat.engine.gpu.linear.quantized import GpuQuantizedWeight, packed_matrix
from swiftchat.engine.linear.factory import WeightFactory
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.weights.quantization.scheme import QuantizedMatrix


class KernelWeights:
    """Weights for the project's kernels on a GPU."""

    keeps_quantized = True
    quantizes_activations = True
    blocks = None

    def __init__(self, kernels: LinearKernels) -> None:
        self._kernels = kernels

    def of(self, name: str) -> WeightFactory:
        return self

    def plain(self, tensor: Tensor) -> LinearWeight:
        return GpuPlainWeight(tensor, self._kernels)

    def quantized(
        self, parts: Sequence[QuantizedMatrix], dtype: torch.dtype
    ) -> LinearWeight | None:
        matrix = packed_matrix(parts, dtype, self._kernels.gpu.device)
        return None if matrix is None else GpuQuantizedWeight(matrix, self._kernels)

    def merged(self, parts: Sequence[LinearWeight]) -> LinearWeight:
        return GpuMergedWeight(parts)
