"""The operations of a decoder that no native kernel computes."""

from torch import Tensor

from swiftchat.engine.cpu.recorded_activations import CannotRecordError


class WithoutKernels:
    """The part of `Ops` that raises `CannotRecordError`, so that torch runs the model."""

    def clamp_(self, x: Tensor, limit: float) -> None:
        raise CannotRecordError("no kernel limits queries, keys and values")

    def xielu(self, x: Tensor, scales: Tensor) -> Tensor:
        raise CannotRecordError("no kernel computes xIELU")

    def sparsify_(self, gate_up: Tensor, deviations: float) -> None:
        raise CannotRecordError("no kernel sets gates to 0")
