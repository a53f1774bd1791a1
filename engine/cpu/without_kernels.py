"""The operations of a decoder that no native kernel computes."""

from torch import Tensor

from swiftchat.engine.cpu.recorded_activations import CannotRecordError
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.mixers.weights import ChannelMixWeights
from swiftchat.engine.model.weights import KeyBiases


class WithoutKernels:
    """The part of `Ops` that raises `CannotRecordError`, so that torch runs the model."""

    def with_key_biases(self, qkv: Tensor, weights: KeyBiases) -> Tensor:
        raise CannotRecordError("no kernel adds biases of keys to scores")

    def clamp_(self, x: Tensor, limit: float) -> None:
        raise CannotRecordError("no kernel limits queries, keys and values")

    def xielu(self, x: Tensor, scales: Tensor) -> Tensor:
        raise CannotRecordError("no kernel computes xIELU")

    def channel_mix(
        self,
        plan: None,
        layer: int,
        x: Tensor,
        key: LinearWeight,
        value: LinearWeight,
        weights: ChannelMixWeights,
    ) -> Tensor:
        raise CannotRecordError("no kernel computes channel mixing")

    def sparsify_(self, gate_up: Tensor, deviations: float) -> None:
        raise CannotRecordError("no kernel sets gates to 0")
