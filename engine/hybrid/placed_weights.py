"""What makes the weights of a model of which some are in main memory."""

from collections.abc import Collection

from swiftchat.engine.gpu.linear.factory import KernelWeights
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.linear.factory import WeightFactory


class PlacedWeights(KernelWeights):
    """Weights for a GPU's kernels, but those of some tensors for the CPU's."""

    def __init__(
        self, kernels: LinearKernels, on_host: WeightFactory, host_tensors: Collection[str]
    ) -> None:
        super().__init__(kernels)
        self._on_host, self._host_tensors = on_host, host_tensors

    def of(self, name: str) -> WeightFactory:
        return self._on_host if name in self._host_tensors else self
